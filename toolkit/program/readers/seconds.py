"""Two clocks, of what computes and of what communicates, and what a step moves them by.

One process group carries out its collectives one after another, in the order in which they are
started; two groups do not wait for each other. What waits for a collective stands still until it
is over; what does not is overlapped. On CPUs the backend's threads need cores too
(`Network.core_seconds`); what a GPU's collectives take from the kernels beside them is not in the
model.
"""

from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Protocol

from toolkit.engines.traffic import EngineKind
from toolkit.program.events import (
    Alloc,
    At,
    Collective,
    Compute,
    Event,
    Free,
    Group,
    Phase,
    Program,
    Section,
    Wait,
)

_ByKind = dict[EngineKind, float]
SETTLED = 3
"""Repetitions of a section after which each one takes what the one before took."""


class Network(Protocol):
    """What collectives take."""

    def seconds(self, collective: Collective) -> float:
        """Return the time of one call."""

    def core_seconds(self, collective: Collective) -> float:
        """Return the computation's time that a call takes: the engine's own around it, and what
        moving the data takes from what is computed meanwhile, unless the call blocks."""


@dataclass(frozen=True)
class ComputeTimes:
    """Seconds that one rank computes, without communication.

    Attributes:
        forward_s: of one micro-step.
        backward_s: of one micro-step.
        update_s: clipping and optimizer, once per step.
    """

    forward_s: float
    backward_s: float
    update_s: float

    def scaled(self, factor: float) -> "ComputeTimes":
        """Return the same for `factor` times the tokens per micro-step: both passes follow."""
        return ComputeTimes(self.forward_s * factor, self.backward_s * factor, self.update_s)

    def of(self, phase: Phase) -> float:
        """Return the seconds of a phase."""
        times = {"forward": self.forward_s, "backward": self.backward_s, "update": self.update_s}
        return times[phase]


@dataclass(frozen=True)
class StepTime:
    """Seconds of one optimizer step.

    Attributes:
        step_s: all of it.
        communication_s: of its collectives.
        exposed_s: of those, what the computation does not hide.
        by_kind: both, of each kind of collective.
    """

    step_s: float
    communication_s: float
    exposed_s: float
    by_kind: Mapping[EngineKind, tuple[float, float]] = field(default_factory=dict, compare=False)


def read_seconds(program: Program, times: ComputeTimes, network: Network) -> StepTime:
    """Return the time of a step from the time of its computation and of its collectives.

    Each module is taken to compute its share of a pass by floating-point operations, as both passes
    consist of matrix products above all, and its share of the update by the bytes that it moves.
    """
    per_unit = _seconds_per_unit(program, times)
    return run_clocks(program, lambda event: _units(event) * per_unit[event.phase], network)


def run_clocks(
    program: Program, compute_s: Callable[[Compute], float], network: Network
) -> StepTime:
    """Return the time of a step from what each of its modules and of its collectives takes."""
    clocks = _Clocks(network, compute_s)
    for section in program.sections:
        clocks.run(section)
    sent, exposed = clocks.communication_s, clocks.exposed_s
    by_kind = {kind: (sent[kind], exposed[kind]) for kind in sent}
    return StepTime(clocks.now_s, sum(sent.values()), sum(exposed.values()), by_kind)


def _seconds_per_unit(program: Program, times: ComputeTimes) -> dict[Phase, float]:
    done: dict[Phase, int] = defaultdict(int)
    for event in program.events:
        if isinstance(event, Compute):
            done[event.phase] += _units(event)
    micro_steps = sum(section.name == "micro-step" for section in program.sections)
    return {
        phase: times.of(phase) * (1 if phase == "update" else micro_steps) / units
        for phase, units in done.items()
    }


def _units(event: Compute) -> int:
    return event.bytes if event.phase == "update" else event.flops


@dataclass
class _Clocks:
    """Where computation and communication of one rank have got to.

    Attributes:
        now_s: the computation's clock.
        network_s: when the last collective that a group was given is over.
        over_s: when each collective is over.
        used_s: when the last gather was waited for.
        communication_s: of all collectives of a kind together.
        exposed_s: of which the computation stood still.
    """

    network: Network
    compute_s: Callable[[Compute], float]
    now_s: float = 0.0
    network_s: dict[Group, float] = field(default_factory=lambda: defaultdict(float))
    over_s: dict[Collective, float] = field(default_factory=dict)
    used_s: float = 0.0
    communication_s: _ByKind = field(default_factory=lambda: defaultdict(float))
    exposed_s: _ByKind = field(default_factory=lambda: defaultdict(float))

    def run(self, section: Section) -> None:
        """Move the clocks by a section; once it has settled, by all repetitions left at once."""
        timed = [each for each in section.events if not isinstance(each, (Alloc, Free, At))]
        for _ in range(min(section.times, SETTLED)):
            before_s = self.now_s
            before = dict(self.communication_s), dict(self.exposed_s)
            for event in timed:
                self.follow(event)
        left = max(0, section.times - SETTLED)
        if left:
            self._shift(left * (self.now_s - before_s))
            for total, earlier in zip((self.communication_s, self.exposed_s), before, strict=True):
                for kind, seconds in total.items():
                    total[kind] = seconds + left * (seconds - earlier.get(kind, 0.0))

    def _shift(self, seconds: float) -> None:
        self.now_s += seconds
        self.used_s += seconds
        for group in self.network_s:
            self.network_s[group] += seconds
        for collective in self.over_s:
            self.over_s[collective] += seconds

    def follow(self, event: Event) -> None:
        """Move the clocks by one event."""
        if isinstance(event, Compute):
            self.now_s += self.compute_s(event)
        elif isinstance(event, Collective):
            self._carry_out(event)
        elif isinstance(event, Wait):
            self._wait(event.collective)

    def _carry_out(self, collective: Collective) -> None:
        seconds = self.network.seconds(collective)
        ready_s = self.used_s if collective.ahead else self.now_s
        if collective.after is not None:
            ready_s = max(ready_s, self.over_s[collective.after])
        over_s = max(self.network_s[collective.group], ready_s) + seconds
        self.network_s[collective.group] = self.over_s[collective] = over_s
        self.communication_s[collective.kind] += seconds
        if collective.blocks:
            self._wait(collective)
        self.now_s += self.network.core_seconds(collective)

    def _wait(self, collective: Collective) -> None:
        over_s = self.over_s[collective]
        self.exposed_s[collective.kind] += max(0.0, over_s - self.now_s)
        self.now_s = max(self.now_s, over_s)
        if collective.kind == "all_gather":
            self.used_s = self.now_s
