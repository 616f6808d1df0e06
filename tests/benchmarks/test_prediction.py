"""Predicted steps: payloads as the formulas say, overlap by hand, break-even and price."""

from typing import Any

import pytest
from benchmarks.timeline import Compute, Timeline

from benchmarks.machine_profile import KINDS
from benchmarks.prediction import (
    WALKS,
    break_even_micro_batch,
    compute_of,
    predict_step,
    price_of_replicated,
)
from benchmarks.record import Arm, Sizes, Split
from tests.benchmarks.arms import arm, profile, record
from tests.program.communication import expected_collectives
from toolkit.backends.strategies import supported_pairs
from toolkit.errors import UsageError

SMALL = Sizes(n_layer=4, n_head=4, n_embd=128, vocab_size=4096, block_size=128)
COMPUTE = Compute(forward_s=0.1, backward_s=0.2, update_s=0.01)
PREDICTED = [pair for pair in supported_pairs() if pair[0] in WALKS]


def small(strategy: str, accumulation: str, **changed: Any) -> Arm:
    fields = {"grad_accum_steps": 4, "world_size": 2, "seq_len": 128, "model": SMALL}
    return arm(strategy=strategy, accumulation=accumulation, **(fields | changed))


@pytest.mark.parametrize("backend", ["gloo", "nccl"])
@pytest.mark.parametrize("precision", ["fp32", "bf16"])
@pytest.mark.parametrize(("strategy", "accumulation"), PREDICTED)
def test_payloads_are_what_the_formulas_say(
    strategy: Any, accumulation: Any, precision: Any, backend: str
) -> None:
    one = small(strategy, accumulation, precision=precision)
    carried = WALKS[strategy](one, COMPUTE, profile(backend)).walk().carried
    expected = expected_collectives(
        strategy,
        accumulation,
        sizes=SMALL.model_sizes(),
        grad_accum_steps=4,
        precision=precision,
        world_size=2,
        replicas=1,
    )
    for kind in KINDS:
        payloads = [size for carried_kind, size in carried if carried_kind == kind]
        assert expected[kind].bytes.admits(sum(payloads))
        assert expected[kind].calls.admits(len(payloads))


@pytest.mark.parametrize(("strategy", "accumulation"), PREDICTED)
def test_a_step_is_what_is_computed_and_what_is_waited_for(
    strategy: Any, accumulation: Any
) -> None:
    for backend in ("gloo", "nccl"):
        found = predict_step(small(strategy, accumulation), COMPUTE, profile(backend))
        assert found.step_s == pytest.approx(4 * 0.3 + 0.01 + found.exposed_s)
        assert 0 <= found.exposed_s <= found.communication_s * (1 + 1e-9)


def test_stages_1_and_2_and_fsdp2_over_gloo_hide_nothing() -> None:
    for strategy in ("fsdp2", "fsdp2_no_reshard", "zero1", "zero2"):
        found = predict_step(small(strategy, "replicated"), COMPUTE, profile())
        assert found.exposed_s == pytest.approx(found.communication_s)


def test_streams_let_fsdp2_hide_what_gloo_waits_for() -> None:
    one = small("fsdp2", "sharded")
    gloo, nccl = (predict_step(one, COMPUTE, profile(name)) for name in ("gloo", "nccl"))
    assert nccl.communication_s == gloo.communication_s
    assert nccl.exposed_s < 0.5 * gloo.exposed_s


def test_ddp_hides_all_but_what_comes_after_the_last_gradient() -> None:
    # The buckets: 1 MiB filled by the last norm, block 3 and the end of block 2, and all others,
    # which are complete only with the token embedding.
    first = 4 * (256 + 198_272 + 65_664)
    second = 4 * SMALL.model_sizes().parameter_count - first
    found = predict_step(small("ddp", "replicated"), COMPUTE, profile(bytes_per_s=1e8))
    assert first >= 2**20
    assert found.communication_s == pytest.approx((first + second) / 1e8)
    assert found.exposed_s == pytest.approx(second / 1e8)


def test_a_slow_link_exposes_buckets_that_queue() -> None:
    slow = predict_step(small("ddp", "replicated"), COMPUTE, profile(bytes_per_s=1e6))
    assert slow.exposed_s > slow.communication_s - 0.2


def test_threads_without_a_core_slow_down_what_they_hide_behind() -> None:
    one = small("ddp", "sharded")
    alone, crowded = (
        predict_step(one, COMPUTE, profile(cpu_s_per_byte=5e-9, cores=cores)) for cores in (4, 2)
    )
    first_bucket = 4 * 264_192
    assert crowded.step_s - alone.step_s == pytest.approx(4 * first_bucket * 5e-9)


def test_collectives_queue_behind_each_other_and_waiting_is_exposed() -> None:
    timeline = Timeline(profile(bytes_per_s=1.0, cores=8))
    timeline.start("all_reduce", 10)
    over_s = timeline.start("all_gather", 5)
    timeline.compute(12)
    timeline.wait(over_s)
    assert (over_s, timeline.now_s, timeline.exposed_s, timeline.communication_s) == (15, 15, 3, 15)
    timeline.block("all_reduce", 2)
    assert (timeline.now_s, timeline.exposed_s) == (17, 5)


def test_ratio_falls_with_the_link_and_the_micro_batch() -> None:
    def ratio(bytes_per_s: float, factor: float = 1.0) -> float:
        compute = COMPUTE.scaled(factor)
        sharded, replicated = (
            predict_step(small("zero2", mode), compute, profile(bytes_per_s=bytes_per_s)).step_s
            for mode in ("sharded", "replicated")
        )
        return sharded / replicated

    assert ratio(1e6) > ratio(1e7) > ratio(1e8) > 1
    assert ratio(1e7, 10) < ratio(1e7)


@pytest.mark.parametrize("strategy", ["ddp", "zero2"])
def test_break_even_is_the_first_micro_batch_that_costs_next_to_nothing(strategy: str) -> None:
    one = small(strategy, "sharded", micro_batch_size=2)
    slow = profile(bytes_per_s=2e7)
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
        break_even_micro_batch(small("zero2", "sharded"), COMPUTE, profile(bytes_per_s=10)) is None
    )


def test_the_price_is_what_whole_gradients_hold_more() -> None:
    parameters = SMALL.model_sizes().parameter_count
    assert price_of_replicated(small("fsdp2", "sharded"), "cpu").gradient_bytes == 2 * parameters
    assert price_of_replicated(small("ddp", "sharded"), "cpu").gradient_bytes == 0
    assert price_of_replicated(small("fsdp2", "sharded"), "cpu").peak_bytes > 0
    with pytest.raises(UsageError, match="impossible with strategy 'zero1'"):
        price_of_replicated(small("zero1", "replicated"), "cpu")


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"strategy": "hsdp", "world_size": 4}, "hsdp communicates in groups"),
        ({"world_size": 4}, "the profile is of 2 ranks, not 4"),
        ({"link_mbit_per_s": 100.0}, "the profile's link is None Mbit/s, not 100.0"),
    ],
)
def test_what_the_profile_does_not_know_is_refused(changed: dict[str, Any], said: str) -> None:
    one = small(**({"strategy": "fsdp2", "accumulation": "sharded"} | changed))
    with pytest.raises(UsageError, match=said):
        predict_step(one, COMPUTE, profile())


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
    assert compute_of(records, wanted) == Compute(0.1, 0.2, 0.1)
    assert compute_of(records, small("zero2", "sharded")) is None
