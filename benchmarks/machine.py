"""The machine a benchmark runs on: what to write down about it, and what it can do at most."""

import os
import platform
from dataclasses import dataclass
from datetime import datetime, timezone
from functools import cache
from pathlib import Path

import psutil

from benchmarks.record import Environment
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
    return Environment(
        versions={"python": platform.python_version(), **package_versions()},
        device=device,
        cpu=_cpu_name(),
        cores=len(os.sched_getaffinity(0)),
        threads=threads,
        git=_git(),
        started_at=datetime.now(timezone.utc).isoformat(timespec="seconds"),
    )


@cache
def _git() -> dict[str, object] | None:
    """The state at the first measurement: what runs later is the code of then."""
    return git_state()


@cache
def _cpu_name() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine()
