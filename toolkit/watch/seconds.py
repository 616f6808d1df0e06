"""The seconds that a recorded step was to take, where the speed of its devices is known."""

from typing import Any

from toolkit.errors import UsageError
from toolkit.memory.hardware import find_gpu
from toolkit.prediction.devices import find_speed, widest_use
from toolkit.prediction.network import RingNetwork
from toolkit.prediction.step_time import predict_range
from toolkit.program.events import Program
from toolkit.program.settings import StepSettings
from toolkit.runs.record import RunRecord


def predict_seconds(program: Program, settings: StepSettings, run: RunRecord) -> dict[str, Any]:
    """Return `seconds` of a step, the fastest, middle and slowest, or `why_not`.

    Also of the middle: `communication` and how much of it is `exposed`.
    """
    names = run.environment["devices"].get("names", [])
    if not names:
        return {"why_not": "there is no profile of this machine's CPUs"}
    if settings.precision != "bf16":
        return {"why_not": f"speeds are known of bf16, not of {settings.precision}"}
    if settings.world_size > len(names):
        return {"why_not": "the rate between the run's machines is not known"}
    try:
        speed = find_speed(find_gpu(names[0]).name)
    except UsageError as error:
        return {"why_not": str(error)}
    network = RingNetwork(settings, len(names), speed.link_bytes_per_s, None)
    times = predict_range(program, speed, speed.use or widest_use(), network)
    steps = (times.fastest, times.middle, times.slowest)
    return {
        "seconds": [each.step_s for each in steps],
        "communication": times.middle.communication_s,
        "exposed": times.middle.exposed_s,
    }
