"""What happens in one optimizer step, in program order: the vocabulary of all walks and readers.

A step is a list of sections: what is there before it, its micro-steps, its update. A section that
happens several times in a row, all alike, is written once.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Literal, NamedTuple, get_args

from toolkit.engines.traffic import EngineKind

Part = Literal[
    "parameters", "gradients", "optimizer", "activations", "loss", "communication", "other"
]
PARTS: tuple[Part, ...] = get_args(Part)
Moment = Literal[
    "forward", "loss", "loss backward", "backward", "end of backward", "gather", "optimizer step"
]
Phase = Literal["forward", "backward", "update"]
PHASES: dict[Moment, Phase] = {
    "gather": "forward",
    "forward": "forward",
    "loss": "forward",
    "loss backward": "backward",
    "backward": "backward",
    "end of backward": "backward",
    "optimizer step": "update",
}
Kind = Literal["matmul", "attention", "pointwise", "update"]
"""What computes: a matrix product, attention, element by element, the optimizer."""
KINDS: tuple[Kind, ...] = get_args(Kind)
Group = Literal["world", "shards", "replicas"]
"""All ranks; those that one copy of the state is spread over; those that hold the same slice."""


class Alloc(NamedTuple):
    """`bytes` are allocated for a part."""

    part: Part
    bytes: int


class Free(NamedTuple):
    """`bytes` of a part are freed."""

    part: Part
    bytes: int


class At(NamedTuple):
    """The step has come to this moment."""

    moment: Moment


class Compute(NamedTuple):
    """A module computes.

    Attributes:
        flops: additions and multiplications of its matrix products and its attention.
        bytes: read and written by it.
    """

    phase: Phase
    kind: Kind
    flops: int
    bytes: int


@dataclass(frozen=True, eq=False)
class Collective:
    """A collective is started; each is itself alone, so that a `Wait` can name it.

    Attributes:
        bytes: the payload: the whole tensor that a rank takes part in.
        width: bytes per element of the payload.
        group: whom it joins.
        blocks: nothing is computed until it is over; else a `Wait` comes later.
        after: another collective whose result it sends on.
        ahead: its input is there as soon as the result of the gather before has been used, so that
            where the host runs ahead of the device it starts then, not here.
    """

    kind: EngineKind
    bytes: int
    width: int
    group: Group
    blocks: bool
    after: "Collective | None" = None
    ahead: bool = False


class Wait(NamedTuple):
    """Nothing more is computed until this collective is over."""

    collective: Collective


Event = Alloc | Free | At | Compute | Collective | Wait


@dataclass
class Section:
    """A part of the step that happens `times` times in a row."""

    name: Literal["before", "micro-step", "update"]
    times: int
    events: list[Event] = field(default_factory=list)


class Program:
    """The events of one rank's optimizer step, recorded by the walks; nothing is computed here."""

    def __init__(self) -> None:
        self.sections = [Section("before", 1)]
        self._phase: Phase = "forward"
        self._record = self.sections[0].events.append

    def begin(self, name: Literal["micro-step", "update"], *, times: int = 1) -> None:
        """Begin the next section."""
        self.sections.append(Section(name, times))
        self._record = self.sections[-1].events.append

    def at(self, moment: Moment) -> None:
        """Note what the step is doing from here on."""
        self._record(At(moment))
        self._phase = PHASES[moment]

    def alloc(self, part: Part, size: int) -> None:
        """Allocate `size` bytes."""
        self._record(Alloc(part, size))

    def free(self, part: Part, size: int) -> None:
        """Free `size` bytes."""
        self._record(Free(part, size))

    def touch(self, part: Part, size: int) -> None:
        """Allocate `size` bytes and free them again."""
        self._record(Alloc(part, size))
        self._record(Free(part, size))

    def compute(self, work: tuple[Kind, int, int]) -> None:
        """Compute: a kind, so many operations, so many bytes read and written."""
        self._record(Compute(self._phase, *work))

    def communicate(self, collective: Collective) -> Collective:
        """Start a collective, and return it to be waited for."""
        self._record(collective)
        return collective

    def wait(self, collective: Collective) -> None:
        """Wait for a collective that does not block."""
        self._record(Wait(collective))

    @property
    def events(self) -> Iterator[Event]:
        """Every event once, however often its section happens."""
        return (event for section in self.sections for event in section.events)
