"""The machine a benchmark runs on: what to write down about it, and what it can do at most."""

import csv
import os
import platform
import re
from dataclasses import dataclass
from datetime import datetime, timezone
from functools import cache
from pathlib import Path

import psutil

from benchmarks.record import Environment
from toolkit.engines.strategies import Precision
from toolkit.model.sizes import ModelSizes
from toolkit.program.settings import Device
from toolkit.training.run_folder import git_state, package_versions

TFLOP = 1e12


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


def peak_flops_per_s(device: str, precision: Precision) -> float | None:
    """Return a device's dense peak at matrix products, or None where `devices.csv` has none.

    Args:
        device: PyTorch's name of a GPU.
        precision: of the computation; no peak is given for fp32, which runs off the matrix units.
    """
    if precision == "fp32":
        return None
    with Path(__file__).with_name("devices.csv").open() as file:
        for row in csv.DictReader(file):
            tflops = row[f"{precision}_tflops"]
            if re.fullmatch(row["device"], device) and tflops:
                return float(tflops) * TFLOP
    return None


def flops_per_token(sizes: ModelSizes, *, seq_len: int) -> int:
    """Return the arithmetic that one token's training takes, 6 N + 12 L H Q T.

    Chowdhery et al. 2022, "PaLM: Scaling Language Modeling with Pathways", appendix B: N
    parameters, L layers, H heads of dimension Q, sequences of T tokens; what activation
    checkpointing computes again does not count. The position table, which multiplies nothing, is
    left out of N; the tied token table counts once, as the head.
    """
    parameters = sizes.parameter_count - sizes.block_size * sizes.n_embd
    return 6 * parameters + 12 * sizes.n_layer * sizes.n_embd * seq_len
