"""The table of collectives: what a step communicates, by kind, and when it reduces gradients."""

from dataclasses import dataclass
from typing import NamedTuple

from toolkit.program.events import KINDS, Collective, Group, Kind, Program, Section


@dataclass(frozen=True)
class Traffic:
    """Collectives of one kind in one step of one rank.

    Attributes:
        bytes: of all payloads together.
        groups: whom they join.
    """

    calls: int
    bytes: int
    groups: frozenset[Group]


class Reductions(NamedTuple):
    """Kinds of collective that reduce gradients before the window's last micro-step, and in it."""

    earlier: frozenset[Kind]
    at_boundary: frozenset[Kind]


def read_traffic(program: Program) -> dict[Kind, Traffic]:
    """Return the step's calls and payload bytes of each kind."""
    return {kind: _traffic(program, kind) for kind in KINDS}


def read_reductions(program: Program) -> Reductions:
    """Return when the step reduces gradients."""
    *earlier, last = (section for section in program.sections if section.name == "micro-step")
    update = program.sections[-1]
    return Reductions(
        frozenset(kind for section in earlier for kind in _reducing(section)),
        _reducing(last) | _reducing(update),
    )


def _traffic(program: Program, kind: Kind) -> Traffic:
    found = [
        (section.times, event)
        for section in program.sections
        for event in _collectives(section)
        if event.kind == kind
    ]
    return Traffic(
        calls=sum(times for times, _ in found),
        bytes=sum(times * event.bytes for times, event in found),
        groups=frozenset(event.group for _, event in found),
    )


def _collectives(section: Section) -> list[Collective]:
    return [event for event in section.events if isinstance(event, Collective)]


def _reducing(section: Section) -> frozenset[Kind]:
    return frozenset(event.kind for event in _collectives(section)) - {"all_gather"}
