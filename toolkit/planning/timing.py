"""How long a step takes on a cluster, and how far that is known."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Protocol

from toolkit.engines.strategies import Strategy
from toolkit.planning.cluster import Cluster
from toolkit.prediction.calibration import find_calibration
from toolkit.prediction.devices import CALIBRATED_PARAMETERS, DeviceSpeed
from toolkit.prediction.network import RingNetwork
from toolkit.prediction.step_time import TimeRange, predict, predict_range
from toolkit.program.events import Compute, Program
from toolkit.program.readers.seconds import StepTime
from toolkit.program.settings import StepSettings
from toolkit.program.step import write_step

CALIBRATED_STRATEGIES: tuple[Strategy, ...] = ("fsdp2",)
"""Of the steps that the costs of GPUs were fitted to."""


class Timing(Protocol):
    """A step's time at the middle of what the calibration leaves open, and the range."""

    @property
    def middle(self) -> StepTime:
        """The time that puts configurations in order."""

    @property
    def all(self) -> TimeRange:
        """The slowest, the middle and the fastest."""

    @property
    def beyond(self) -> str | None:
        """What about the step nothing measured was like; None where the middle is a figure."""


def time_step(step: StepSettings, program: Program, cluster: Cluster) -> Timing:
    """Return what a step takes on a cluster; it is computed when it is asked for."""
    if cluster.profile is not None:
        return MeasuredTiming(step, program, cluster)
    return PublishedTiming(step, program, cluster)


@dataclass(frozen=True)
class PublishedTiming:
    """By a GPU's data sheet and what published training reached of it."""

    step: StepSettings
    program: Program
    cluster: Cluster

    @property
    def speed(self) -> DeviceSpeed:
        """The GPU's."""
        assert self.cluster.speed is not None
        return self.cluster.speed

    @cached_property
    def middle(self) -> StepTime:
        """By the shares of this GPU, or of those nearest to it."""
        return predict(self.program, self.speed.costs(self.speed.nearest_use.middle), self._network)

    @cached_property
    def all(self) -> TimeRange:
        """By the shares of all measured GPUs, or by the errors on this one."""
        return predict_range(self.program, self.speed, self.speed.nearest_use, self._network)

    @property
    def beyond(self) -> str | None:
        """What about the step no measured row was like.

        Links between machines are taken at their nominal rate, which nothing was measured over.
        """
        sizes = self.step.sizes
        if self.speed.use is None:
            return f"no training on {self.speed.name} was measured, only its data sheet is known"
        if sizes.parameter_count not in CALIBRATED_PARAMETERS:
            return f"no model of {sizes.parameter_count:,} parameters was measured"
        if self.step.precision != "bf16":
            return f"nothing was measured in {self.step.precision}"
        if not self.cluster.is_one_machine:
            return "links between machines are taken at their nominal rate"
        if self.step.strategy not in CALIBRATED_STRATEGIES:
            return f"no step of {self.step.strategy} was measured on GPUs"
        return None

    @property
    def _network(self) -> RingNetwork:
        cluster = self.cluster
        return RingNetwork(
            self.step, cluster.per_machine, self.speed.link_bytes_per_s, cluster.between
        )


@dataclass(frozen=True)
class MeasuredTiming:
    """By the profile of the machine at hand."""

    step: StepSettings
    program: Program
    cluster: Cluster

    @cached_property
    def middle(self) -> StepTime:
        """By lines through measured modules, and measured collectives."""
        assert self.cluster.here is not None
        return find_calibration(self.step, self.cluster.here).predict(self.program)

    @property
    def all(self) -> TimeRange:
        """No range is known."""
        return TimeRange(self.middle, self.middle, self.middle, {})

    @property
    def beyond(self) -> str | None:
        """Nothing: what is not covered cannot be timed."""
        return None


def module_seconds(step: StepSettings, cluster: Cluster) -> Callable[[Compute], float]:
    """Return what modules of a step take by themselves.

    Raises:
        NotCalibrated: the machine at hand was not measured for such a step.
    """
    if cluster.here is not None:
        return find_calibration(step, cluster.here).compute_s
    assert cluster.speed is not None
    return cluster.speed.costs(cluster.speed.nearest_use.middle).compute_s


class LeastTimes:
    """What a step takes at least: its computation in a micro-batch that no other exceeds.

    Neither update nor communication is in it. Strategies differ in it only by the width of their
    residual stream.
    """

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._found: dict[tuple[object, ...], float] = {}

    def of(self, step: StepSettings) -> float:
        """Return the seconds of a step in the largest micro-batch."""
        if self._cluster.here is not None:
            # Whether the machine was measured for a strategy is asked of each.
            module_seconds(step, self._cluster)
        key = step.autocast, step.loss, step.activation_checkpointing
        if key not in self._found:
            self._found[key] = step.grad_accum_steps * self._micro_step_s(step)
        return self._found[key]

    def _micro_step_s(self, step: StepSettings) -> float:
        compute_s = module_seconds(step, self._cluster)
        program = write_step(replace(step, grad_accum_steps=1))
        return sum(
            compute_s(event)
            for event in program.events
            if isinstance(event, Compute) and event.phase != "update"
        )
