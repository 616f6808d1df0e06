"""What modules and collectives take on a machine that was measured."""

from collections.abc import Iterable, Sequence
from itertools import combinations
from statistics import median
from typing import NamedTuple

import numpy as np

from toolkit.errors import UsageError
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
    """Return the line with the least sum of squares of relative errors, no term negative.

    Of all sets of terms, the one that fits best without a negative one: three terms are few enough
    to try them all.
    """
    seconds = np.array([point.seconds for point in points])
    terms = np.array([[1.0, point.flops, point.bytes] for point in points]) / seconds[:, None]
    scale = np.maximum(terms.max(axis=0), np.finfo(float).tiny)
    best, least = np.zeros(3), float("inf")
    for columns in _subsets(3):
        found, *_ = np.linalg.lstsq(terms[:, columns] / scale[columns], np.ones(len(points)))
        candidate = np.zeros(3)
        candidate[columns] = found
        error = float(np.square(terms / scale @ candidate - 1).sum())
        if (candidate >= 0).all() and error < least:
            best, least = candidate, error
    return Line(*(float(term) for term in best / scale))


def _subsets(count: int) -> Iterable[list[int]]:
    return (list(found) for n in range(1, count + 1) for found in combinations(range(count), n))


class ProfiledNetwork:
    """What collectives take by machine profiles, each of one number of ranks over one link.

    A group of fewer ranks than there are takes what as many ranks took alone: that other groups use
    the machine at the same time is not in it.
    """

    def __init__(self, profiles: Sequence[MachineProfile], settings: StepSettings) -> None:
        self.profiles = {profile.world_size: profile for profile in profiles}
        self.settings = settings
        self.busy_cores = _busy_cores(profiles[0], settings.world_size)

    def seconds(self, collective: Collective) -> float:
        """Return the time of one call, read off the measured curve."""
        return self._curve(collective).seconds(collective.bytes)

    def core_seconds(self, collective: Collective) -> float:
        """Return what a backend's threads take from the computation where no core is left."""
        cpu_s_per_byte = self._curve(collective).cpu_s_per_byte or 0.0
        return self.busy_cores * cpu_s_per_byte * collective.bytes

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
