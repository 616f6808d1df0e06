"""The largest micro-batch: the run can use it, and it fits when it is asked for directly."""

import dataclasses

import pytest

from toolkit.engines.strategies import supported_pairs
from toolkit.memory.calibration import Calibration
from toolkit.memory.hardware import Gpu, find_gpu
from toolkit.memory.largest import StepTokens, _largest, largest_micro_batch
from toolkit.model.sizes import ModelSizes, preset_sizes
from toolkit.program.settings import StepSettings
from toolkit.program.step import estimate_peak

SMALL = ModelSizes(n_layer=2, n_head=2, n_embd=64, vocab_size=512, block_size=64)


def step(strategy="single", accumulation="replicated", **changes) -> StepSettings:
    settings = {
        "sizes": SMALL,
        "strategy": strategy,
        "accumulation": accumulation,
        "world_size": 1 if strategy == "single" else 8,
        "replicas": 2 if strategy == "hsdp" else 1,
        "seq_len": 64,
    }
    return StepSettings(**{**settings, **changes})


def peak(settings: StepSettings, size: int, tokens: StepTokens) -> int:
    """The peak of the run that has this micro-batch."""
    steps = tokens.grad_accum_steps(size, seq_len=settings.seq_len, world_size=settings.world_size)
    direct = dataclasses.replace(settings, micro_batch_size=size, grad_accum_steps=steps)
    return estimate_peak(direct).total


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
@pytest.mark.parametrize("checkpointing", [True, False])
@pytest.mark.parametrize("is_fixed", [True, False])
@pytest.mark.parametrize(("strategy", "accumulation"), supported_pairs())
def test_what_is_found_fits_and_the_next_that_the_run_can_use_does_not(
    strategy, accumulation, is_fixed, checkpointing, precision
) -> None:
    settings = step(
        strategy, accumulation, precision=precision, activation_checkpointing=checkpointing
    )
    tokens = StepTokens(wanted=96 * 64 * settings.world_size, is_fixed=is_fixed)
    sizes = tokens.micro_batches(seq_len=64, world_size=settings.world_size)
    peaks = {size: peak(settings, size, tokens) for size in (1, 7, 8, 24, 32, 33, 48, 96)}
    for memory in sorted({*peaks.values(), *(total - 1 for total in peaks.values())}):
        allowance = Calibration(context_bytes=0, reserved_over_allocated=1.0)
        gpu = Gpu("some", memory, allowance)
        found = largest_micro_batch(settings, tokens, gpu)
        if found:
            assert found in sizes
            assert peak(settings, found, tokens) <= memory
        following = [size for size in sizes[: 2 * 96] if size > found][:1]
        assert all(peak(settings, size, tokens) > memory for size in following)
        # Whatever fits among those that were asked for is no larger.
        fitting = [size for size, total in peaks.items() if size in sizes and total <= memory]
        assert found >= max(fitting, default=0)


def test_each_micro_batch_has_its_own_micro_steps() -> None:
    """DDP with one micro-step holds a second set of buckets: what fits with two does not there."""
    settings = step(
        "ddp",
        "sharded",
        sizes=preset_sizes("gpt2-xl"),
        seq_len=1024,
        activation_checkpointing=True,
        grad_accum_steps=64,
    )
    gpu = find_gpu("A100-80")
    tokens = StepTokens(wanted=2**19, is_fixed=False)
    found = largest_micro_batch(settings, tokens, gpu)
    assert gpu.holds(peak(settings, found, tokens))
    assert not gpu.holds(peak(settings, found + 1, tokens))
    kept = dataclasses.replace(settings, micro_batch_size=found + 1)
    assert gpu.holds(estimate_peak(kept).total)


def test_a_run_uses_only_what_divides_its_step() -> None:
    run = StepTokens(wanted=2**19, is_fixed=True)
    assert list(run.micro_batches(seq_len=1024, world_size=8)) == [1, 2, 4, 8, 16, 32, 64]
    assert list(run.micro_batches(seq_len=1024, world_size=7)) == []
    huge = Gpu("some", 2**60, Calibration())
    assert largest_micro_batch(step(seq_len=64), StepTokens(wanted=640, is_fixed=True), huge) == 10
    assert largest_micro_batch(step(seq_len=64), StepTokens(wanted=100, is_fixed=True), huge) == 0


def test_nothing_fits_where_one_sequence_does_not() -> None:
    settings = step(sizes=preset_sizes("gpt2-xl"), seq_len=1024)
    tokens = StepTokens(wanted=2**19, is_fixed=False)
    assert largest_micro_batch(settings, tokens, find_gpu("T4")) == 0


@pytest.mark.parametrize(("room", "largest"), [(0, 2**20), (-1, 2**20 - 1)])
def test_the_largest_micro_batch_is_right_up_to_the_most_that_a_run_takes(room, largest) -> None:
    settings = step(seq_len=1)
    tokens = StepTokens(wanted=1, is_fixed=False)
    most = Calibration().device_bytes(peak(settings, 2**20, tokens))
    assert largest_micro_batch(settings, tokens, Gpu("some", most + room, Calibration())) == largest


def test_few_sizes_are_tried() -> None:
    tried: list[int] = []

    def fits(size: int) -> bool:
        tried.append(size)
        return size <= 80

    sizes = range(1, 2**20 + 1)
    assert _largest(sizes, lambda size: max(1, 64 // size), fits) == 80
    assert len(tried) < 16
