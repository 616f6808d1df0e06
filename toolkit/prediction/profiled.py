"""What modules and collectives take on a machine that was measured."""

from collections.abc import Sequence
from statistics import median
from typing import NamedTuple

import numpy as np

from toolkit.errors import UsageError
from toolkit.prediction.engines import EngineCosts
from toolkit.prediction.least_squares import nonnegative
from toolkit.prediction.machine_profile import Curve, MachineProfile, MicroStep, WorkPoint
from toolkit.program.events import KINDS, Collective, Compute
from toolkit.program.settings import Device, StepSettings
from toolkit.program.step import write_step


class Line(NamedTuple):
    """Seconds of a module of one kind: launch_s + flops x flop_s + bytes x byte_s."""

    launch_s: float
    flop_s: float
    byte_s: float


class MeasuredCompute:
    """What modules take: each kind by a line through its measured shapes, times what whole
    micro-steps take of the sum of their modules.

    Attributes:
        whole: that ratio, the median over the micro-steps that were measured; embeddings, adding up
            gradients, allocation and autograd itself are in it. The update has none.
    """

    def __init__(self, profile: MachineProfile) -> None:
        if not profile.work:
            raise UsageError("the machine profile has no modules; measure the machine again")
        self.lines = {
            kind: fit_line([point for point in profile.work if point.kind == kind])
            for kind in KINDS
        }
        self.whole = 1.0
        device: Device = "cpu" if profile.environment.device == "cpu" else "cuda"
        self.whole = median(self._whole(each, device) for each in profile.micro_steps)

    def compute_s(self, event: Compute) -> float:
        """Return the seconds of a module."""
        line = self.lines[event.kind]
        seconds = line.launch_s + event.flops * line.flop_s + event.bytes * line.byte_s
        return seconds if event.phase == "update" else self.whole * seconds

    def _whole(self, measured: MicroStep, device: Device) -> float:
        settings = StepSettings(
            sizes=measured.sizes,
            strategy="single",
            accumulation="replicated",
            world_size=1,
            micro_batch_size=measured.micro_batch_size,
            seq_len=measured.seq_len,
            precision="fp32" if device == "cpu" else "bf16",
            device=device,
        )
        modules_s = sum(
            self.compute_s(event)
            for event in write_step(settings).events
            if isinstance(event, Compute) and event.phase != "update"
        )
        return (measured.forward_s + measured.backward_s) / modules_s


def fit_line(points: Sequence[WorkPoint]) -> Line:
    """Return the line with the least sum of squares of relative errors, no term negative."""
    seconds = np.array([point.seconds for point in points])
    terms = np.array([[1.0, point.flops, point.bytes] for point in points]) / seconds[:, None]
    return Line(*nonnegative(terms, np.ones(len(points))))


class ProfiledNetwork:
    """What collectives take by machine profiles, each of one number of ranks over one link.

    A group of fewer ranks than there are takes what as many ranks took alone: that other groups use
    the machine at the same time is not in it.

    Args:
        profiles: of the sizes of all groups.
        settings: whose groups are meant.
        engine: what the engine computes around a call; None leaves it out.
    """

    def __init__(
        self,
        profiles: Sequence[MachineProfile],
        settings: StepSettings,
        engine: EngineCosts | None = None,
    ) -> None:
        self.profiles = {profile.world_size: profile for profile in profiles}
        self.settings = settings
        self.engine = engine
        self.busy_cores = _busy_cores(profiles[0], settings.world_size)

    def seconds(self, collective: Collective) -> float:
        """Return the time of one call, read off the measured curve."""
        return self._curve(collective).seconds(collective.bytes)

    def core_seconds(self, collective: Collective) -> float:
        """Return the engine's own time, and what a backend's threads take from the computation that
        goes on beside them where no core is left."""
        engine_s = self.engine.seconds(collective, self.settings.sizes) if self.engine else 0.0
        if collective.blocks:
            return engine_s
        cpu_s_per_byte = self._curve(collective).cpu_s_per_byte or 0.0
        return engine_s + self.busy_cores * cpu_s_per_byte * collective.bytes

    def _curve(self, collective: Collective) -> Curve:
        ranks = self.settings.ranks_of(collective.group)
        collectives = self.profiles[ranks].collectives
        # As much is sent; profiles made before there was the exchange do not have it.
        return collectives.get(collective.kind) or collectives["all_gather"]


def _busy_cores(profile: MachineProfile, world_size: int) -> float:
    """Return the share of a rank's communication threads that has no core of its own, 0 to 1."""
    environment = profile.environment
    free = environment.cores - world_size * environment.threads
    return 1 - min(1.0, max(0.0, free / world_size))
