"""What the record of the chunked loss has to show, and that it is measured as it says."""

import json
from types import SimpleNamespace

import psutil
import pytest

from benchmarks import chunked_loss
from benchmarks.chunked_loss import RESULTS, formula, largest_that_fits, time_head, update
from toolkit.engines.strategies import Precision


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_the_formula_says_two_fifths_less_at_16_sequences(precision: Precision) -> None:
    plain, chunked = (formula(update(precision, 16, loss)) for loss in ("plain", "chunked"))
    assert chunked < 0.6 * plain


def test_the_record_shows_it_traced_and_measured() -> None:
    record = json.loads((RESULTS / "chunked_loss.json").read_text())
    by_method = {(row["method"], row["precision"]): row for row in record["peak"]}
    for precision in ("fp32", "bf16"):
        at_16 = by_method["formula", precision], by_method["trace", precision]
        assert [row["micro_batch_size"] for row in at_16] == [16, 16]
        for row in (*at_16, by_method["measured", precision]):
            assert row["lower_by"] == 1 - row["bytes"]["chunked"] / row["bytes"]["plain"]
        assert all(row["lower_by"] >= 0.4 for row in at_16)


def test_a_micro_batch_is_halved_until_the_plain_loss_fits(monkeypatch: pytest.MonkeyPatch) -> None:
    def available(size: float) -> None:
        memory = SimpleNamespace(available=size / (1 - chunked_loss.LEFT_FREE))
        monkeypatch.setattr(psutil, "virtual_memory", lambda: memory)

    available(formula(update("fp32", 4, "plain")) + 1)
    assert largest_that_fits("fp32") == 4
    available(formula(update("fp32", 4, "plain")) - 1)
    assert largest_that_fits("fp32") == 2
    available(1)
    assert largest_that_fits("fp32") == 1


def test_both_losses_are_timed_in_turns() -> None:
    found = time_head(rows=300, n_embd=8, vocab_size=50, precision="fp32")
    assert [len(seconds) for seconds in found["processor_s"].values()] == 2 * [chunked_loss.REPEATS]
    assert found["speed"]["low"] <= found["speed"]["median"] <= found["speed"]["high"]
