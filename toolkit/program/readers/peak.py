"""The highest point of a step: how much is allocated there, of what, and when."""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import accumulate

from toolkit.program.events import PARTS, Alloc, At, Free, Moment, Part, Program


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


def changes(program: Program) -> Iterator[tuple[Part, int]]:
    """Yield each part that grows or shrinks, with the bytes by which it does, in program order."""
    for event in program.events:
        if isinstance(event, Alloc):
            yield event
        elif isinstance(event, Free):
            yield event.part, -event.bytes


def totals(program: Program) -> list[int]:
    """Return the bytes held after each change."""
    return list(accumulate(size for _, size in changes(program)))


def highest(program: Program) -> int:
    """Return the most bytes held at a time, in one pass without the parts."""
    held = most = 0
    for section in program.sections:
        for event in section.events:
            if type(event) is Alloc:
                held += event.bytes
                most = max(most, held)
            elif type(event) is Free:
                held -= event.bytes
    return most


def moments(program: Program) -> Iterator[Moment]:
    """Yield what the step was doing at each change; before its first moment, a forward pass."""
    moment: Moment = "forward"
    for event in program.events:
        if isinstance(event, At):
            moment = event.moment
        elif isinstance(event, Alloc | Free):
            yield moment


def read_peak(program: Program) -> Peak:
    """Return the highest point; the first one where it is reached several times."""
    held = totals(program)
    highest = max(held)
    last = held.index(highest)
    parts: dict[Part, int] = dict.fromkeys(PARTS, 0)
    for number, (part, size) in enumerate(changes(program)):
        if number > last:
            break
        parts[part] += size
    moment = next(at for number, at in enumerate(moments(program)) if number == last)
    return Peak(parts, highest, moment, least=highest)
