"""How long a step takes on a cluster, and how far that is known."""

from dataclasses import dataclass, replace
from functools import cached_property

from toolkit.engines.strategies import Strategy
from toolkit.planning.cluster import Cluster
from toolkit.prediction.devices import CALIBRATED_PARAMETERS
from toolkit.prediction.network import RingNetwork
from toolkit.prediction.step_time import TimeRange, predict, predict_range
from toolkit.program.events import Compute, Program
from toolkit.program.readers.seconds import StepTime
from toolkit.program.settings import StepSettings
from toolkit.program.step import write_step

CALIBRATED_STRATEGIES: tuple[Strategy, ...] = ("fsdp2",)
"""Of the steps that the costs of GPUs were fitted to."""


@dataclass(frozen=True)
class Timing:
    """A step's time at the middle of what the calibration leaves open, and the range."""

    step: StepSettings
    program: Program
    cluster: Cluster

    @cached_property
    def middle(self) -> StepTime:
        """The time that puts configurations in order."""
        speed = self.cluster.speed
        return predict(self.program, speed.costs(speed.nearest_use.middle), self._network)

    @cached_property
    def all(self) -> TimeRange:
        """The slowest, the middle and the fastest."""
        use = self.cluster.speed.nearest_use
        return predict_range(self.program, self.cluster.speed, use, self._network)

    @property
    def range_s(self) -> tuple[float, float]:
        """Seconds of the step at least and at most."""
        return self.all.fastest.step_s, self.all.slowest.step_s

    @property
    def is_calibrated(self) -> bool:
        """Whether the middle is a figure to give."""
        return self.beyond is None

    @property
    def beyond(self) -> str | None:
        """What about the step no measured row was like; None where there is nothing.

        Links between machines are taken at their nominal rate, which nothing was measured over.
        """
        cluster, sizes = self.cluster, self.step.sizes
        if cluster.speed.use is None:
            return f"no training on {cluster.gpu.name} was measured, only its data sheet is known"
        if sizes.parameter_count not in CALIBRATED_PARAMETERS:
            return f"no model of {sizes.parameter_count:,} parameters was measured"
        if self.step.precision != "bf16":
            return f"nothing was measured in {self.step.precision}"
        if not cluster.is_one_machine:
            return "links between machines are taken at their nominal rate"
        if self.step.strategy not in CALIBRATED_STRATEGIES:
            return f"no step of {self.step.strategy} was measured on GPUs"
        return None

    @property
    def _network(self) -> RingNetwork:
        cluster = self.cluster
        return RingNetwork(
            self.step, cluster.per_machine, cluster.speed.link_bytes_per_s, cluster.between
        )


class LeastTimes:
    """What a step takes at least: its computation in a micro-batch that no other exceeds.

    Neither update nor communication is in it. Strategies differ in it only by the width of their
    residual stream.
    """

    def __init__(self, cluster: Cluster) -> None:
        speed = cluster.speed
        self._costs = speed.costs(speed.nearest_use.middle)
        self._found: dict[tuple[object, ...], float] = {}

    def of(self, step: StepSettings) -> float:
        """Return the seconds of a step in the largest micro-batch."""
        key = step.autocast, step.loss, step.activation_checkpointing
        if key not in self._found:
            self._found[key] = step.grad_accum_steps * self._micro_step_s(step)
        return self._found[key]

    def _micro_step_s(self, step: StepSettings) -> float:
        program = write_step(replace(step, grad_accum_steps=1))
        return sum(
            self._costs.compute_s(event)
            for event in program.events
            if isinstance(event, Compute) and event.phase != "update"
        )
