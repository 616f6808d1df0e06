"""The largest micro-batch that fits, from few walks.

With as many micro-steps walked, each tensor of a step has a fixed part and one that grows with the
micro-batch. Two walks separate them for every moment of the step, and so give the peak of any other
micro-batch; the one that is chosen is walked itself, and compared.
"""

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import accumulate, takewhile

from toolkit.memory.hardware import Gpu
from toolkit.memory.largest import StepTokens, largest_micro_batch
from toolkit.program.events import Alloc, At, Event, Free, Program
from toolkit.program.readers.peak import highest
from toolkit.program.settings import StepSettings
from toolkit.program.step import WALKED_MICRO_STEPS, write_step


class Walks:
    """The programs of one shape."""

    def __init__(self, shape: StepSettings, tokens: StepTokens) -> None:
        self.shape = shape
        self.tokens = tokens
        self._programs: dict[int, Program] = {}

    @property
    def sizes(self) -> Sequence[int]:
        """The micro-batches that cut the step, the smallest first."""
        return self.tokens.micro_batches(
            seq_len=self.shape.seq_len, world_size=self.shape.world_size
        )

    def settings(self, size: int) -> StepSettings:
        """Return the shape with a micro-batch and its micro-steps."""
        steps = self.tokens.grad_accum_steps(
            size, seq_len=self.shape.seq_len, world_size=self.shape.world_size
        )
        return replace(self.shape, micro_batch_size=size, grad_accum_steps=steps)

    def program(self, size: int) -> Program:
        """Return the program of a micro-batch."""
        if size not in self._programs:
            self._programs[size] = write_step(self.settings(size))
        return self._programs[size]

    def largest(self, gpu: Gpu) -> int:
        """Return the largest micro-batch that fits, 0 if none does.

        The largest of all is tried first: most often it has a single micro-step, which is a third
        of a walk.
        All tokens are used, so at most one size has a single micro-step, and one has two.
        """
        found = self._largest(gpu)
        # What was walked on the way is large, and not needed again.
        kept = found or self.sizes[0]
        self._programs = {kept: self.program(kept)}
        return found

    def _largest(self, gpu: Gpu) -> int:
        if found := self._first_that_fits(self.sizes[-1:], gpu):
            return found
        repeated = self._repeated
        if self._growth is None:
            if len(repeated) < 2:
                return self._first_that_fits(self.sizes, gpu)
            return largest_micro_batch(self.shape, self.tokens, gpu)
        few = self.sizes[len(repeated) :]
        few = [size for size in few if gpu.holds(self._growth.forward_peak(size))]
        if found := self._first_that_fits(few, gpu):
            return found
        fitting = bisect_right(repeated, self._growth.most(gpu))
        if not fitting:
            return 0
        size = repeated[fitting - 1]
        if highest(self.program(size)) != self._growth.peak(size):
            return largest_micro_batch(self.shape, self.tokens, gpu)
        return size

    @cached_property
    def _repeated(self) -> list[int]:
        """Micro-batches whose steps are walked with as many micro-steps as any."""
        return [
            size
            for size in self.sizes
            if self.settings(size).grad_accum_steps >= WALKED_MICRO_STEPS
        ]

    @cached_property
    def _growth(self) -> "_Growth | None":
        """What grows between two micro-batches, where there are two to compare."""
        if len(self._repeated) < 2:
            return None
        return _Growth.between(*((size, self.program(size)) for size in self._repeated[:2]))

    def _first_that_fits(self, sizes: Sequence[int], gpu: Gpu) -> int:
        """Try the largest first."""
        found = (size for size in reversed(sizes) if gpu.holds(highest(self.program(size))))
        return next(found, 0)


@dataclass(frozen=True)
class _Growth:
    """What is held after each change: a fixed part, and one for each sequence of the micro-batch.

    Attributes:
        forward: changes before the first backward pass, which are the same however many micro-steps
            a step has.
    """

    fixed: list[int]
    each: list[int]
    forward: int

    @staticmethod
    def between(first: tuple[int, Program], second: tuple[int, Program]) -> "_Growth | None":
        """Return the growth between two micro-batches; None where their changes differ in kind."""
        (small, program), (large, other) = first, second
        low, high = _held(program), _held(other)
        if len(low) != len(high):
            return None
        each = [(b - a) // (large - small) for a, b in zip(low, high, strict=True)]
        fixed = [a - small * slope for a, slope in zip(low, each, strict=True)]
        before = [*program.sections[0].events, *_until_backward(program.sections[1].events)]
        return _Growth(fixed, each, sum(isinstance(event, Alloc | Free) for event in before))

    def peak(self, size: int) -> int:
        """Return the highest of all."""
        return max(a + size * b for a, b in zip(self.fixed, self.each, strict=True))

    def forward_peak(self, size: int) -> int:
        """Return the highest of the first forward pass."""
        fixed, each = self.fixed[: self.forward], self.each[: self.forward]
        return max(a + size * b for a, b in zip(fixed, each, strict=True))

    def most(self, gpu: Gpu) -> int:
        """Return up to which micro-batch all moments fit, 0 where one never does."""
        room = _room(gpu)
        if any(a > room for a in self.fixed):
            return 0
        sizes = ((room - a) // b for a, b in zip(self.fixed, self.each, strict=True) if b > 0)
        return min(sizes)


def _held(program: Program) -> list[int]:
    """Return the bytes held after each change."""
    return list(
        accumulate(
            event.bytes if type(event) is Alloc else -event.bytes
            for section in program.sections
            for event in section.events
            if type(event) is Alloc or type(event) is Free
        )
    )


def _until_backward(events: Sequence[Event]) -> list[Event]:
    return list(takewhile(lambda event: event != At("loss backward"), events))


def _room(gpu: Gpu) -> int:
    """Return the most allocated bytes that a GPU holds."""
    return bisect_right(range(gpu.memory_bytes + 1), False, key=lambda n: not gpu.holds(n)) - 1
