"""The time of a step on GPUs, from its program, a device's speed and its links."""

from dataclasses import dataclass

from toolkit.prediction.devices import DeviceSpeed, Use
from toolkit.program.events import Compute, Phase, Program
from toolkit.program.readers.seconds import ComputeTimes, Network, StepTime, read_seconds


@dataclass(frozen=True)
class TimeRange:
    """Steps at the slowest, the middle and the fastest share of the device's peak."""

    slowest: StepTime
    middle: StepTime
    fastest: StepTime


def predict_range(program: Program, speed: DeviceSpeed, use: Use, network: Network) -> TimeRange:
    """Return the time of a step at three shares of the peak; only links are the same in all.

    The update's memory traffic is not modelled apart: the shares are of whole steps, updates in
    them.
    """
    slowest, middle, fastest = (
        read_seconds(program, _compute_times(program, share * speed.peak_flops), network)
        for share in (use.low, use.median, use.high)
    )
    return TimeRange(slowest, middle, fastest)


def _compute_times(program: Program, flops_per_s: float) -> ComputeTimes:
    flops: dict[Phase, int] = {"forward": 0, "backward": 0, "update": 0}
    micro_steps = sum(section.name == "micro-step" for section in program.sections)
    for event in program.events:
        if isinstance(event, Compute):
            flops[event.phase] += event.flops
    per_second = micro_steps * flops_per_s
    return ComputeTimes(flops["forward"] / per_second, flops["backward"] / per_second, 0.0)
