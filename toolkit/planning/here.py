"""The machine at hand as a cluster: measured once, and kept for later questions."""

import psutil

from toolkit.errors import UsageError
from toolkit.memory.calibration import Calibration as MemoryCalibration
from toolkit.memory.hardware import Gpu, find_gpu
from toolkit.planning.cluster import Cluster
from toolkit.prediction.calibration import Here, find_profile, keep_profile
from toolkit.prediction.machine_profile import MachineProfile
from toolkit.prediction.measure import cpu_name, measure_machine

RANK_BYTES = 2**29
"""What a process on a CPU holds beside its tensors: Python and libraries; assumed."""


def find_here(ranks: int) -> tuple[Here, MachineProfile | None]:
    """Return this machine and what was measured of it with so many ranks, if anything.

    Raises:
        UsageError: there are fewer GPUs, or a kept profile is damaged.
    """
    import torch

    gpus = torch.cuda.device_count()
    if 0 < gpus < ranks:
        raise UsageError(f"--gpus {ranks}: this machine has {gpus}; leave --here out for more")
    device = torch.cuda.get_device_name(0) if gpus else cpu_name()
    here = Here(device=device, torch=torch.__version__, ranks_per_machine=ranks)
    return here, find_profile(ranks, here)


def measure_here(ranks: int) -> MachineProfile:
    """Measure modules and collectives in about a minute, and keep what was found.

    Raises:
        ProcessError: a rank failed.
        HangError: they took too long.
    """
    profile = measure_machine(ranks)
    keep_profile(profile)
    return profile


def cluster_here(here: Here, profile: MachineProfile) -> Cluster:
    """Return the machine at hand; a CPU's ranks share its memory."""
    return Cluster(
        gpu=_device(here, profile),
        speed=None,
        gpus=profile.world_size,
        per_machine=profile.world_size,
        between=None,
        here=here,
        profile=profile,
    )


def _device(here: Here, profile: MachineProfile) -> Gpu:
    if profile.environment.device != "cpu":
        return find_gpu(here.device)
    own = psutil.virtual_memory().total // profile.world_size
    return Gpu(
        here.device, own, MemoryCalibration(context_bytes=RANK_BYTES, reserved_over_allocated=1.0)
    )
