"""The machine a benchmark runs on: what to write down about it, and what it can do at most."""

import platform
from dataclasses import dataclass
from functools import cache

import psutil

from toolkit.prediction.machine_profile import Environment
from toolkit.prediction.measure import describe_machine
from toolkit.program.settings import Device
from toolkit.training.run_folder import git_state, package_versions


@dataclass(frozen=True)
class Machine:
    """What cases run on.

    Attributes:
        name: the GPU's name as PyTorch gives it, or "cpu".
        type: `torch.device.type`.
        gpus: how many there are.
        memory_bytes: of one GPU, or what the host has available for all ranks together.
    """

    name: str
    type: Device
    gpus: int
    memory_bytes: int


def find_machine() -> Machine:
    """Look at this host; its GPUs are taken to be alike."""
    import torch

    if not torch.cuda.is_available():
        return Machine("cpu", "cpu", 0, psutil.virtual_memory().available)
    gpu = torch.cuda.get_device_properties(0)
    return Machine(gpu.name, "cuda", torch.cuda.device_count(), gpu.total_memory)


def describe_environment(device: str, *, threads: int) -> Environment:
    """Return what is written down with every measurement.

    Args:
        device: what the ranks compute on.
        threads: of each rank.
    """
    return describe_machine(device, threads).model_copy(
        update={
            "versions": {"python": platform.python_version(), **package_versions()},
            "git": _git(),
        }
    )


@cache
def _git() -> dict[str, object] | None:
    """The state at the first measurement: what runs later is the code of then."""
    return git_state()
