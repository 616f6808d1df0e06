"""Allocations and frees of one step in program order, and the peak that follows from them."""

from dataclasses import dataclass
from itertools import accumulate
from typing import Literal, get_args

Part = Literal[
    "parameters", "gradients", "optimizer", "activations", "loss", "communication", "other"
]
Moment = Literal[
    "forward", "loss", "loss backward", "backward", "end of backward", "gather", "optimizer step"
]
PARTS: tuple[Part, ...] = get_args(Part)


@dataclass(frozen=True)
class Peak:
    """The highest point of a step.

    Attributes:
        parts: bytes by part; they sum to `total`.
        moment: where in the step it falls.
        least: the lower end of a range of which `total` is the upper one; else the same.
    """

    parts: dict[Part, int]
    total: int
    moment: Moment
    least: int


class Ledger:
    """A list of signed sizes in bytes, each belonging to a part; nothing is computed until asked.

    Attributes:
        moment: what the step is doing; events are filed under it.
    """

    def __init__(self) -> None:
        self.events: list[tuple[int, Part]] = []
        self._moments: list[tuple[int, Moment]] = []

    def at(self, moment: Moment) -> None:
        """Say what the step is doing from here on."""
        self._moments.append((len(self.events), moment))

    def add(self, part: Part, size: int) -> None:
        """Allocate `size` bytes."""
        self.events.append((size, part))

    def drop(self, part: Part, size: int) -> None:
        """Free `size` bytes."""
        self.events.append((-size, part))

    def touch(self, part: Part, size: int) -> None:
        """Allocate `size` bytes and free them again."""
        self.events.append((size, part))
        self.events.append((-size, part))

    def totals(self) -> list[int]:
        """Return the bytes held after each event."""
        return list(accumulate(size for size, _ in self.events))

    def moment_of(self, event: int) -> Moment:
        """Return what the step was doing at an event."""
        return next(name for start, name in reversed(self._moments) if start <= event)

    def peak(self) -> Peak:
        """Return the highest point; the first one where it is reached several times."""
        totals = self.totals()
        highest = max(totals)
        event = totals.index(highest)
        parts: dict[Part, int] = dict.fromkeys(PARTS, 0)
        for size, part in self.events[: event + 1]:
            parts[part] += size
        return Peak(parts, highest, self.moment_of(event), least=highest)
