"""What a collective takes on GPUs: a ring within a machine or over several."""

from dataclasses import dataclass

from toolkit.program.events import Collective
from toolkit.program.settings import StepSettings

LATENCY_S = 40e-6
"""One call of next to no payload: 32 KiB on 8 H200 take 40 microseconds (1.44 GB/s of bus
bandwidth; stas00/ml-engineering, network README). Between machines it is taken to be the same."""


@dataclass(frozen=True)
class RingNetwork:
    """Links within and between machines, in bytes per second.

    Attributes:
        settings: whose groups are meant; ranks of one machine are next to one another.
        per_machine: ranks on a machine.
        within: bus bandwidth in a machine.
        between: the nominal rate of a machine, both directions alike; None on a single one.
    """

    settings: StepSettings
    per_machine: int
    within: float
    between: float | None

    def seconds(self, collective: Collective) -> float:
        """Return the time of one call.

        A ring of n ranks sends (n - 1) / n of the payload, twice for an all-reduce
        (nccl-tests, doc/PERFORMANCE.md).
        """
        ranks = self.settings.ranks_of(collective.group)
        if ranks == 1:
            return 0.0
        rounds = 2 if collective.kind == "all_reduce" else 1
        sent = rounds * (ranks - 1) / ranks * collective.bytes
        return LATENCY_S + sent / self._rate(collective)

    def core_seconds(self, collective: Collective) -> float:
        """Return nothing: what collectives take from kernels is among a device's costs."""
        return 0.0

    def _rate(self, collective: Collective) -> float:
        """Groups that cross machines share a machine's link; replica groups do so side by side."""
        settings = self.settings
        is_replica = collective.group == "replicas"
        span = settings.world_size if is_replica else settings.ranks_of(collective.group)
        if self.between is None or span <= self.per_machine:
            return self.within
        side_by_side = min(settings.shards, self.per_machine) if is_replica else 1
        return min(self.within, self.between / side_by_side)
