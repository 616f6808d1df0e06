"""The published error table: what is in it, and that the formula is still what it says."""

import pytest

from benchmarks.memory.configurations import load
from benchmarks.memory.error_table import error_row, read_oracle
from benchmarks.memory.markdown import public_rows
from toolkit.engines.strategies import supported_pairs

TUNED, HELD_OUT = load("tuned"), load("held_out")


def test_every_strategy_and_mode_is_in_it_and_a_third_is_held_out() -> None:
    everything = [*TUNED, *HELD_OUT]
    assert len(everything) >= 60
    assert {(c.strategy, c.accumulation) for c in everything} == set(supported_pairs())
    assert 3 * len(HELD_OUT) >= len(everything)
    assert not set(TUNED) & set(HELD_OUT)


@pytest.mark.parametrize("name", ["tuned", "held_out", "knobs"])
def test_the_formula_is_within_one_percent(name: str) -> None:
    oracle = read_oracle()
    rows = [error_row(name, c, oracle[c]) for c in load(name)]
    assert [row for row in rows if abs(row["error_percent"]) > 1] == []
    assert max(row["worst_part_percent"] for row in rows) < 2


def test_what_a_compiled_step_holds_is_in_the_range() -> None:
    oracle = read_oracle()
    rows = [error_row("compiled", c, oracle[c]) for c in load("compiled")]
    for row in rows:
        # Scalars and seeds of the generated code are not in the formula.
        assert row["formula_least_bytes"] < 1.001 * row["peak_bytes"], row
        assert row["formula_bytes"] > 0.999 * row["peak_bytes"], row


def test_bounds_that_were_published_are_kept() -> None:
    assert not [row for row in public_rows() if row["agrees"] == "no"]
