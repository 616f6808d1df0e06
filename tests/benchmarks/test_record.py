from pathlib import Path

import pytest

from benchmarks.record import RECORDS, append_record, read_records
from tests.benchmarks.arms import arm, record
from toolkit.errors import UsageError


def test_records_come_back_as_they_were(tmp_path: Path) -> None:
    written = [record(arm(), repeat=n, step_s=[0.1, 0.2]) for n in range(2)]
    for one in written:
        append_record(tmp_path / "new", one)
    assert read_records(tmp_path / "new") == written
    assert read_records(tmp_path / "empty") == []


def test_an_unfinished_last_line_is_passed_over_and_cut_off(tmp_path: Path) -> None:
    append_record(tmp_path, record(arm()))
    whole = (tmp_path / RECORDS).read_bytes()
    (tmp_path / RECORDS).write_bytes(whole + whole[:100])
    assert len(read_records(tmp_path)) == 1
    append_record(tmp_path, record(arm(), repeat=1))
    assert [one.repeat for one in read_records(tmp_path)] == [0, 1]


def test_a_line_that_is_no_record_is_named(tmp_path: Path) -> None:
    append_record(tmp_path, record(arm()))
    with (tmp_path / RECORDS).open("a") as file:
        file.write('{"arm": 1}\n')
    with pytest.raises(UsageError, match=r"records\.jsonl:2: not a benchmark record: arm"):
        read_records(tmp_path)
