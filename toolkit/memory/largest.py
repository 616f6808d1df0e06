"""The largest micro-batch that fits, among those that a run can use."""

from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from math import isqrt

from toolkit.config.section import MAX_MICRO_BATCH
from toolkit.memory.hardware import Gpu
from toolkit.program.readers.peak import read_peak
from toolkit.program.settings import StepSettings
from toolkit.program.step import WALKED_MICRO_STEPS, write_step


@dataclass(frozen=True, kw_only=True)
class StepTokens:
    """The tokens of one optimizer step.

    Attributes:
        wanted: tokens over all ranks.
        is_fixed: a run was given that takes exactly these; else as many as make whole micro-steps.
        only: the one micro-batch, in sequences, that is asked about; None for all.
    """

    wanted: int
    is_fixed: bool
    only: int | None = None

    def grad_accum_steps(self, micro_batch_size: int, *, seq_len: int, world_size: int) -> int:
        """Return the micro-steps of that many sequences that fit into the step, at least one."""
        return max(1, self.wanted // (micro_batch_size * seq_len * world_size))

    def micro_batches(self, *, seq_len: int, world_size: int) -> Sequence[int]:
        """Return the micro-batches, in sequences, that a run can use, the smallest first."""
        if not self.is_fixed:
            return range(1, MAX_MICRO_BATCH + 1)
        per_rank, rest = divmod(self.wanted, seq_len * world_size)
        if rest:
            return []
        sizes = [n for n in _divisors(per_rank) if n <= MAX_MICRO_BATCH]
        return [n for n in sizes if self.only in (None, n)]


def _divisors(number: int) -> list[int]:
    small = [n for n in range(1, isqrt(number) + 1) if number % n == 0]
    return sorted({*small, *(number // n for n in small)})


def largest_micro_batch(settings: StepSettings, tokens: StepTokens, gpu: Gpu) -> int:
    """Return the largest micro-batch that fits and that a run can use, 0 if there is none.

    Each is judged with its own micro-steps. It is `MAX_MICRO_BATCH`, the most that a run
    configuration takes, where that fits.
    """

    def micro_steps(size: int) -> int:
        return tokens.grad_accum_steps(
            size, seq_len=settings.seq_len, world_size=settings.world_size
        )

    def fits(size: int) -> bool:
        step = replace(settings, micro_batch_size=size, grad_accum_steps=micro_steps(size))
        return gpu.holds(read_peak(write_step(step)).total)

    sizes = tokens.micro_batches(seq_len=settings.seq_len, world_size=settings.world_size)
    return _largest(sizes, micro_steps, fits)


def _largest(
    sizes: Sequence[int], micro_steps: Callable[[int], int], fits: Callable[[int], bool]
) -> int:
    """Search each stretch of sizes that are walked with as many micro-steps, the largest first.

    There, more sequences take more memory. From one stretch to the next they need not: DDP, for
    one, holds a second set of buckets where a step has a single micro-step.
    """
    above = len(sizes)
    for walked in range(1, WALKED_MICRO_STEPS + 1):
        start = bisect_left(sizes, -walked, key=lambda n: -min(micro_steps(n), WALKED_MICRO_STEPS))
        if start < above and fits(sizes[start]):
            return sizes[_last_that_fits(sizes, start, above, fits)]
        above = start
    return 0


def _last_that_fits(sizes: Sequence[int], low: int, above: int, fits: Callable[[int], bool]) -> int:
    """Return the last index below `above` that fits; `low` does. Steps double, then halve."""
    stride = 1
    while low + stride < above and fits(sizes[low + stride]):
        low, stride = low + stride, 2 * stride
    high = min(low + stride, above)
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if fits(sizes[middle]) else (low, middle)
    return low
