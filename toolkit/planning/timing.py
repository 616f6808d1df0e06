"""How long a candidate's step takes on a cluster, and how far that is known."""

from dataclasses import dataclass

from toolkit.planning.cluster import Cluster
from toolkit.prediction.devices import CALIBRATED_PARAMETERS, widest_use
from toolkit.prediction.network import RingNetwork
from toolkit.prediction.step_time import predict_range
from toolkit.program.events import Program
from toolkit.program.readers.seconds import StepTime
from toolkit.program.settings import StepSettings


@dataclass(frozen=True)
class Timing:
    """A step at the fastest, the middle and the slowest that the calibration leaves open.

    `middle` puts candidates in order; its figures are given only where `is_calibrated`: on a
    measured GPU, with a measured size of model, in bf16, on one machine. Links between machines are
    taken at their nominal rate, which nothing here was measured over.
    """

    fastest: StepTime
    middle: StepTime
    slowest: StepTime
    is_calibrated: bool

    @property
    def range_s(self) -> tuple[float, float]:
        """Seconds of the step at least and at most."""
        return self.fastest.step_s, self.slowest.step_s


def time_step(step: StepSettings, program: Program, cluster: Cluster) -> Timing:
    """Return the time of a step from its program."""
    use = cluster.speed.use
    network = RingNetwork(
        step, cluster.per_machine, cluster.speed.link_bytes_per_s, cluster.between
    )
    times = predict_range(program, cluster.speed, use or widest_use(), network)
    is_calibrated = (
        use is not None
        and step.sizes.parameter_count in CALIBRATED_PARAMETERS
        and step.precision == "bf16"
        and cluster.is_one_machine
    )
    return Timing(times.fastest, times.middle, times.slowest, is_calibrated)
