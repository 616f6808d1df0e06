"""The time of a step on GPUs, from its program, a device's costs and its links."""

from collections.abc import Mapping
from dataclasses import dataclass

from toolkit.prediction.costs import Costs, seconds_by_kind
from toolkit.prediction.devices import DeviceSpeed, Use
from toolkit.program.events import Collective, Program
from toolkit.program.readers.seconds import Network, StepTime, run_clocks


@dataclass(frozen=True)
class TimeRange:
    """Steps at the slowest, the middle and the fastest that the calibration leaves open.

    Attributes:
        by_part: the middle's seconds: `matmul`, `attention`, `pointwise`, `update`, `slowed` (what
            collectives take from the kernels beside them) and `exposed` (what is waited for).
    """

    slowest: StepTime
    middle: StepTime
    fastest: StepTime
    by_part: Mapping[str, float]


def predict_range(program: Program, speed: DeviceSpeed, use: Use, network: Network) -> TimeRange:
    """Return the time of a step; the links are the same in all three."""
    middle = predict(program, speed.costs(use.middle), network)
    return TimeRange(
        slowest=predict(program, speed.costs(use.slow).slower(use.most), network),
        middle=middle,
        fastest=predict(program, speed.costs(use.fast).slower(use.least), network),
        by_part=_parts(program, speed.costs(use.middle), middle),
    )


def predict(program: Program, costs: Costs, network: Network) -> StepTime:
    """Return the time of a step whose work takes `costs`, collectives beside it included."""
    return run_clocks(program, costs.compute_s, BesideKernels(network, costs))


@dataclass(frozen=True)
class BesideKernels:
    """A network whose collectives slow down the kernels beside them."""

    network: Network
    costs: Costs

    def seconds(self, collective: Collective) -> float:
        """Return the time of one call."""
        return self.network.seconds(collective)

    def core_seconds(self, collective: Collective) -> float:
        """Return what an overlapped call takes from the kernels beside it."""
        return 0.0 if collective.blocks else self.costs.taken_s(collective)


def _parts(program: Program, costs: Costs, step: StepTime) -> dict[str, float]:
    computed = seconds_by_kind(program, costs)
    slowed = step.step_s - step.exposed_s - sum(computed.values())
    return {**computed, "slowed": slowed, "exposed": step.exposed_s}
