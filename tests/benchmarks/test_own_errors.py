"""The tables of the committed sweeps, and that they notice a wrong model."""

import csv

import pytest

from benchmarks import own_errors
from benchmarks.own_errors import RESULTS, pair_rows, read_sweeps, regret_rows
from toolkit.prediction.engines import EngineCosts


@pytest.mark.parametrize(
    ("name", "rows"), [("pair_errors", pair_rows), ("regret", regret_rows)]
)  # fmt: skip
def test_the_committed_tables_come_out_of_the_records(name: str, rows: object) -> None:
    assert callable(rows)
    with (RESULTS / f"{name}.csv").open() as file:
        assert [tuple(row) for row in csv.reader(file)] == rows(read_sweeps())


def test_engines_that_cost_much_more_change_the_tables(monkeypatch: pytest.MonkeyPatch) -> None:
    committed = pair_rows(read_sweeps())
    slow = EngineCosts(1e-2, 0.0, 0.0, 0.0)
    monkeypatch.setattr(own_errors, "find_engine_costs", lambda *arguments: slow)
    assert pair_rows(read_sweeps()) != committed
