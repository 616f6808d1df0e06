"""What is known of the machine that a step runs on, and a sentence where nothing is.

A machine that was measured (`toolkit plan --here`) is known for its device, torch release and
number of ranks; its profile is kept in `~/.cache/scaling-toolkit/machines/` (below `XDG_CACHE_HOME`
where that is set). A GPU of `use.csv` is known for bf16, one machine and the sizes that were
measured.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from toolkit.counted import counted
from toolkit.engines.strategies import ALONE
from toolkit.errors import UsageError
from toolkit.memory.calibration import calibration_file
from toolkit.memory.hardware import find_gpu
from toolkit.prediction.devices import CALIBRATED_PARAMETERS, find_speed
from toolkit.prediction.engines import find_engine_costs, processor, torch_release
from toolkit.prediction.machine_profile import MachineProfile, read_profile
from toolkit.prediction.network import RingNetwork
from toolkit.prediction.step_time import BesideKernels
from toolkit.program.events import Compute, Program
from toolkit.program.readers.seconds import Network, StepTime, run_clocks
from toolkit.program.settings import StepSettings


class NotCalibrated(UsageError):
    """No calibration covers this step on this machine; the message names what is missing."""


@dataclass(frozen=True)
class Here:
    """Where a step runs.

    Attributes:
        device: PyTorch's name of the GPU, or the processor's name.
        torch: its version.
        ranks_per_machine: of the step's ranks, those on one machine.
    """

    device: str
    torch: str
    ranks_per_machine: int


@dataclass(frozen=True)
class Calibration:
    """What modules and collectives take, and how that is known."""

    compute_s: Callable[[Compute], float]
    network: Network
    source: str

    def predict(self, program: Program) -> StepTime:
        """Return the time of a step."""
        return run_clocks(program, self.compute_s, self.network)


def find_calibration(settings: StepSettings, here: Here) -> Calibration:
    """Return what covers a step.

    Raises:
        NotCalibrated: nothing does.
    """
    if here.ranks_per_machine < settings.world_size:
        raise NotCalibrated("no calibration covers links between machines")
    profile = find_profile(settings.world_size, here)
    if profile is not None:
        return _from_profile(settings, profile)
    if settings.device == "cuda":
        return _from_use(settings, here)
    raise NotCalibrated(_unmeasured(here, settings.world_size))


def keep_profile(profile: MachineProfile) -> Path:
    """Keep what was measured for later runs on such a machine, and return the file."""
    device = re.sub(r"\W+", "_", processor(profile.environment)).strip("_")
    path = _folder() / f"{device}_{profile.world_size}_ranks.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_suffix(".tmp")
    partial.write_text(profile.model_dump_json(indent=1))
    partial.replace(path)
    return path


def find_profile(world_size: int, here: Here) -> MachineProfile | None:
    """Return the kept profile of a machine's own link, or None.

    Raises:
        UsageError: a kept profile is damaged; the message names it.
    """
    for path in sorted(_folder().glob(f"*_{world_size}_ranks.json")):
        found = read_profile(path)
        known = processor(found.environment), torch_release(found.environment)
        if known == (here.device, here.torch.partition("+")[0]) and found.link_mbit_per_s is None:
            return found
    return None


def _folder() -> Path:
    return calibration_file().with_name("machines")


def _from_profile(settings: StepSettings, profile: MachineProfile) -> Calibration:
    # Numpy, which these need, is not for those that ask for nothing.
    from toolkit.prediction.profiled import MeasuredCompute, ProfiledNetwork

    measured = "fp32" if profile.environment.device == "cpu" else "bf16"
    where = f"{processor(profile.environment)}, torch {torch_release(profile.environment)}"
    if settings.precision != measured:
        raise NotCalibrated(f"{where} was measured in {measured}, not {settings.precision}")
    if settings.replicas > 1:
        raise NotCalibrated(f"{where} was measured without replica groups")
    engine = find_engine_costs(settings.strategy, profile.environment)
    if engine is None and settings.strategy != ALONE:
        raise NotCalibrated(f"what {settings.strategy} computes itself is not known on {where}")
    compute = MeasuredCompute(profile)
    network = ProfiledNetwork([profile], settings, engine)
    return Calibration(compute.compute_s, network, f"measured on {where}")


def _from_use(settings: StepSettings, here: Here) -> Calibration:
    try:
        speed = find_speed(find_gpu(here.device).name)
    except UsageError:
        raise NotCalibrated(_unmeasured(here, settings.world_size)) from None
    if speed.use is None:
        raise NotCalibrated(_unmeasured(here, settings.world_size))
    if settings.precision != "bf16":
        raise NotCalibrated(f"{speed.name} was measured in bf16, not {settings.precision}")
    if settings.sizes.parameter_count not in CALIBRATED_PARAMETERS:
        raise NotCalibrated(f"{speed.name} was measured with models of 124M to 65B parameters")
    costs = speed.costs(speed.use.middle)
    network = RingNetwork(settings, settings.world_size, speed.link_bytes_per_s, None)
    return Calibration(
        costs.compute_s, BesideKernels(network, costs), f"published for {speed.name}"
    )


def _unmeasured(here: Here, ranks: int) -> str:
    return (
        f"no calibration covers {counted(ranks, 'rank')} on {here.device} with torch {here.torch}; "
        f"toolkit plan --here --gpus {ranks} measures it"
    )
