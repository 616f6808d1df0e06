"""The table of collectives: what a step communicates, by kind, and when it reduces gradients."""

from collections.abc import Iterator

from toolkit.engines.traffic import KINDS, Kind, Reductions, Traffic
from toolkit.program.events import Collective, Program, Section
from toolkit.program.settings import StepSettings


def read_traffic(program: Program, settings: StepSettings) -> dict[Kind, Traffic]:
    """Return the step's calls and payload bytes of each kind, and the sizes of their groups."""
    return {kind: _traffic(program, settings, kind) for kind in KINDS}


def sent_bytes(program: Program) -> int:
    """Return the payload of a step's collectives; an all-reduce is sent twice."""
    return sum(
        section.times * each.bytes * (2 if each.kind == "all_reduce" else 1)
        for section in program.sections
        for each in _collectives(section)
    )


def read_reductions(program: Program) -> Reductions:
    """Return when the step reduces gradients."""
    *earlier, last, update = program.sections[1:]
    return Reductions(
        frozenset(kind for section in earlier for kind in _reducing(section)),
        frozenset(_reducing(last)) | frozenset(_reducing(update)),
        sum(section.times * _reduced_bytes(section) for section in earlier),
    )


def _traffic(program: Program, settings: StepSettings, kind: Kind) -> Traffic:
    found = [
        (section.times, collective)
        for section in program.sections
        for collective in _collectives(section)
        if collective.kind == kind
    ]
    return Traffic(
        calls=sum(times for times, _ in found),
        bytes=sum(times * collective.bytes for times, collective in found),
        group_sizes=tuple(sorted({settings.ranks_of(each.group) for _, each in found})),
    )


def _collectives(section: Section) -> Iterator[Collective]:
    return (event for event in section.events if isinstance(event, Collective))


def _reduced_bytes(section: Section) -> int:
    return sum(each.bytes for each in _collectives(section) if each.kind != "all_gather")


def _reducing(section: Section) -> Iterator[Kind]:
    return (each.kind for each in _collectives(section) if each.kind != "all_gather")
