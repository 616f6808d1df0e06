"""Predicted steps: what a profile says of them, break-even and price."""

from typing import Any

import pytest

from benchmarks.prediction import (
    break_even_micro_batch,
    compute_of,
    predict_step,
    price_of_replicated,
)
from benchmarks.record import Case, Split
from tests.benchmarks.cases import case, profile, record
from toolkit.errors import UsageError
from toolkit.model.sizes import ModelSizes
from toolkit.program.readers.seconds import ComputeTimes

SMALL = ModelSizes(n_layer=4, n_head=4, n_embd=128, vocab_size=4096, block_size=128)
COMPUTE = ComputeTimes(forward_s=0.1, backward_s=0.2, update_s=0.01)


def small(strategy: str, accumulation: str, **changed: Any) -> Case:
    fields = {"grad_accum_steps": 4, "world_size": 2, "seq_len": 128, "model": SMALL}
    return case(strategy=strategy, accumulation=accumulation, **(fields | changed))


def test_ratio_falls_with_the_link_and_the_micro_batch() -> None:
    def ratio(bytes_per_s: float, factor: float = 1.0) -> float:
        compute = COMPUTE.scaled(factor)
        sharded, replicated = (
            predict_step(small("zero2", mode), compute, [profile(bytes_per_s=bytes_per_s)]).step_s
            for mode in ("sharded", "replicated")
        )
        return sharded / replicated

    assert ratio(1e6) > ratio(1e7) > ratio(1e8) > 1
    assert ratio(1e7, 10) < ratio(1e7)


@pytest.mark.parametrize("strategy", ["ddp", "zero2"])
def test_break_even_is_the_first_micro_batch_that_costs_next_to_nothing(strategy: str) -> None:
    one = small(strategy, "sharded", micro_batch_size=2)
    slow = [profile(bytes_per_s=2e7)]
    found = break_even_micro_batch(one, COMPUTE, slow)
    assert found is not None
    assert found > 1

    def cost(sequences: int) -> float:
        compute = COMPUTE.scaled(sequences / 2)
        sharded, replicated = (
            predict_step(small(strategy, mode), compute, slow).step_s
            for mode in ("sharded", "replicated")
        )
        return sharded / replicated

    assert cost(found) <= 1.05 < cost(found - 1)


def test_no_micro_batch_makes_up_for_a_link_that_hardly_moves() -> None:
    assert (
        break_even_micro_batch(small("zero2", "sharded"), COMPUTE, [profile(bytes_per_s=10)])
        is None
    )


def test_the_price_is_what_whole_gradients_hold_more() -> None:
    parameters = SMALL.parameter_count
    assert price_of_replicated(small("fsdp2", "sharded"), "cpu").gradient_bytes == 2 * parameters
    assert price_of_replicated(small("ddp", "sharded"), "cpu").gradient_bytes == 0
    assert price_of_replicated(small("fsdp2", "sharded"), "cpu").peak_bytes > 0
    with pytest.raises(UsageError, match="impossible with strategy 'zero1'"):
        price_of_replicated(small("zero1", "replicated"), "cpu")


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"world_size": 4}, "no machine profile is of 4 ranks over that link"),
        ({"link_mbit_per_s": 100.0}, "no machine profile is of a link of 100.0 Mbit/s"),
    ],
)
def test_what_the_profile_does_not_know_is_refused(changed: dict[str, Any], said: str) -> None:
    one = small(**({"strategy": "fsdp2", "accumulation": "sharded"} | changed))
    with pytest.raises(UsageError, match=said):
        predict_step(one, COMPUTE, [profile()])


def test_computation_comes_from_the_fastest_link_and_the_replicated_mode() -> None:
    def split(forward_s: float) -> Split:
        return Split(forward_s=forward_s, backward_s=0.8, communication_s=5.0, optimizer_s=0.1)

    wanted = small("ddp", "sharded", link_mbit_per_s=10.0, grad_accum_steps=2)
    records = [
        record(small("ddp", "replicated", link_mbit_per_s=100.0), split=split(1.0)),
        record(small("ddp", "replicated", link_mbit_per_s=1000.0), split=split(0.4)),
        record(small("ddp", "sharded", link_mbit_per_s=None), split=split(2.0)),
        record(small("ddp", "replicated", micro_batch_size=9), split=split(3.0)),
        record(small("ddp", "replicated", link_mbit_per_s=None), error="failed"),
    ]
    assert compute_of(records, wanted) == ComputeTimes(0.1, 0.2, 0.1)
    assert compute_of(records, small("zero2", "sharded")) is None


def test_hybrid_sharding_takes_the_time_of_its_groups() -> None:
    one = small("hsdp", "sharded", world_size=4)
    slow, fast = (
        predict_step(one, COMPUTE, [profile(bytes_per_s=rate, world_size=2)]) for rate in (1e7, 1e8)
    )
    assert slow.communication_s == pytest.approx(10 * fast.communication_s)
    assert fast.communication_s > 0
