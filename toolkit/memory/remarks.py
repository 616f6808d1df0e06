"""The sentences around the table of an estimate."""

from collections.abc import Iterator, Sequence

from toolkit.batching import BatchPlan
from toolkit.engines.strategies import Strategy
from toolkit.memory.hardware import in_gib
from toolkit.memory.largest import StepTokens
from toolkit.memory.report import Row
from toolkit.program.settings import StepSettings


def describe_assumptions(steps: Sequence[StepSettings], tokens: StepTokens) -> Iterator[str]:
    """A step that no run could cut like this is still answered for."""
    for step in {settings.world_size: settings for settings in steps}.values():
        plan = _plan(step)
        if not tokens.is_fixed or plan.tokens_per_step == tokens.wanted:
            continue
        yield (
            f"batch.tokens_per_step {tokens.wanted:,} cannot be cut into micro-steps of "
            f"{plan.tokens_per_wave:,} tokens on {step.world_size:,} ranks, so no run starts like "
            f"this; assumed is {plan.describe()}, since memory hardly depends on the number of "
            "micro-steps beyond two"
        )
        if not tokens.micro_batches(seq_len=step.seq_len, world_size=step.world_size):
            yield f"no batch.micro_batch_size cuts it on {step.world_size:,} ranks"


def describe_rows(rows: Sequence[Row]) -> Iterator[str]:
    """What all rows have in common, and how a step is cut on each number of ranks."""
    first = rows[0].settings
    yield (
        f"{first.sizes.parameter_count:,} parameters, {first.precision} on {first.device}; "
        "allocated bytes per rank at the peak"
    )
    steps = {row.settings.world_size: row.settings for row in rows}
    for world_size in sorted(steps, reverse=True):
        yield _plan(steps[world_size]).describe()
    if equal := _with_equal_modes(rows):
        yield (
            f"one micro-step per step accumulates nothing: the modes of {', '.join(equal)} take "
            "the same memory; they differ with a larger batch.tokens_per_step or a smaller "
            "micro-batch"
        )


def describe_checkpoint(size: int, ranks: int) -> str:
    """What a checkpoint takes of disk."""
    share = f"; each of {ranks} ranks writes {in_gib(size // ranks)} GiB of it, its own share"
    return f"a checkpoint takes {in_gib(size)} GiB of disk{share if ranks > 1 else ''}"


def describe_compiled(method: str) -> str:
    """How sure the figures of a compiled model are."""
    if method == "trace":
        return "model.compile: traced without a compiler, which may keep less"
    return (
        "model.compile: from what its partitioner may drop to what blocks keep without it; "
        "bars, fits and parts are of the upper end"
    )


def _plan(step: StepSettings) -> BatchPlan:
    wave = step.micro_batch_size * step.seq_len * step.world_size
    return BatchPlan(
        tokens_per_step=step.grad_accum_steps * wave,
        seq_len=step.seq_len,
        micro_batch_size=step.micro_batch_size,
        world_size=step.world_size,
    )


def _with_equal_modes(rows: Sequence[Row]) -> list[Strategy]:
    """Strategies whose modes cannot differ, for lack of a second micro-step."""
    peaks: dict[Strategy, list[int]] = {}
    for row in rows:
        if row.settings.grad_accum_steps == 1:
            peaks.setdefault(row.settings.strategy, []).append(row.peak)
    return [name for name, found in peaks.items() if len(found) > 1 and len(set(found)) == 1]
