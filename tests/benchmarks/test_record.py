from pathlib import Path

import pytest

from benchmarks.record import RECORDS, append_record, read_records
from tests.benchmarks.cases import case, record
from toolkit.errors import UsageError


def test_records_come_back_as_they_were(tmp_path: Path) -> None:
    written = [record(case(), repeat=n, step_s=[0.1, 0.2]) for n in range(2)]
    for one in written:
        append_record(tmp_path / "new", one)
    assert read_records(tmp_path / "new") == written
    assert read_records(tmp_path / "empty") == []


def test_an_unfinished_last_line_is_passed_over_and_cut_off(tmp_path: Path) -> None:
    append_record(tmp_path, record(case()))
    whole = (tmp_path / RECORDS).read_bytes()
    (tmp_path / RECORDS).write_bytes(whole + whole[:100])
    assert len(read_records(tmp_path)) == 1
    append_record(tmp_path, record(case(), repeat=1))
    assert [one.repeat for one in read_records(tmp_path)] == [0, 1]


def test_records_that_are_a_folder_are_named(tmp_path: Path) -> None:
    (tmp_path / RECORDS).mkdir()
    with pytest.raises(UsageError, match=r"records\.jsonl: Is a directory"):
        read_records(tmp_path)


@pytest.mark.parametrize("name", ["world_size", "grad_accum_steps", "micro_batch_size", "seq_len"])
def test_a_case_of_nothing_is_no_record(tmp_path: Path, name: str) -> None:
    of_nothing = case().model_copy(update={name: 0})
    append_record(tmp_path, record(case()).model_copy(update={"case": of_nothing}))
    with pytest.raises(UsageError, match=rf"jsonl:1: not a benchmark record: case\.{name}: "):
        read_records(tmp_path)


def test_a_line_that_is_no_record_is_named(tmp_path: Path) -> None:
    append_record(tmp_path, record(case()))
    with (tmp_path / RECORDS).open("a") as file:
        file.write('{"case": 1}\n')
    with pytest.raises(UsageError, match=r"records\.jsonl:2: not a benchmark record: case"):
        read_records(tmp_path)
