"""The seconds that a recorded step was to take, where the speed of its devices is known."""

from collections.abc import Sequence
from typing import Any

from toolkit.errors import UsageError
from toolkit.memory.hardware import find_gpu
from toolkit.prediction.calibration import Here, find_calibration
from toolkit.prediction.devices import find_speed, widest_use
from toolkit.prediction.network import RingNetwork
from toolkit.prediction.step_time import predict_range
from toolkit.program.events import Program
from toolkit.program.readers.seconds import StepTime
from toolkit.program.settings import StepSettings
from toolkit.runs.record import RunRecord


def predict_seconds(program: Program, settings: StepSettings, run: RunRecord) -> dict[str, Any]:
    """Return `seconds` of a step, the fastest, middle and slowest, or `why_not`.

    Also of the middle: `communication` and how much of it is `exposed`.
    """
    devices = run.environment["devices"]
    names = devices.get("names", [])
    try:
        if settings.device == "cpu":
            here = Here(names[0], run.environment["packages"]["torch"], devices["ranks"])
            measured = find_calibration(settings, here).predict(program)
            return _numbers([measured] * 3)
        if settings.precision != "bf16":
            return {"why_not": f"speeds are known of bf16, not of {settings.precision}"}
        if settings.world_size > len(names):
            return {"why_not": "the rate between the run's machines is not known"}
        speed = find_speed(find_gpu(names[0]).name)
    except UsageError as error:
        return {"why_not": str(error)}
    network = RingNetwork(settings, len(names), speed.link_bytes_per_s, None)
    times = predict_range(program, speed, speed.use or widest_use(), network)
    return _numbers([times.fastest, times.middle, times.slowest])


def _numbers(times: Sequence[StepTime]) -> dict[str, Any]:
    """Return the numbers of the fastest, middle and slowest; of one measured machine all alike."""
    return {
        "seconds": [each.step_s for each in times],
        "communication": times[1].communication_s,
        "exposed": times[1].exposed_s,
    }
