"""GPUs and their memory, from `hardware.csv` beside this file, which names its sources."""

import csv
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path

from toolkit.errors import UsageError
from toolkit.memory.calibration import Calibration, load_calibration

GIB = 2**30


def in_gib(size: int) -> str:
    """Return bytes as GiB with two decimals, small ones with two digits."""
    return f"{size / GIB:.2f}" if size > GIB / 10 else f"{size / GIB:.2g}"


@dataclass(frozen=True)
class Gpu:
    """A device; `memory_bytes` counts a vendor's GB as GiB, as GPUs are sold."""

    name: str
    memory_bytes: int
    calibration: Calibration

    def holds(self, allocated: int) -> bool:
        """Whether a peak of allocated bytes fits, with context and fragmentation allowed for."""
        return self.calibration.device_bytes(allocated) <= self.memory_bytes


def load_gpus() -> list[Gpu]:
    """Return the known GPUs, the smallest first; forms of equal memory are one."""
    with Path(__file__).with_name("hardware.csv").open() as file:
        sizes = {row["gpu"]: int(row["memory_gb"]) * GIB for row in csv.DictReader(file)}
    calibration = load_calibration()
    gpus = [Gpu(name, size, calibration) for name, size in sizes.items()]
    return sorted(gpus, key=lambda gpu: gpu.memory_bytes)


def find_gpu(name: str) -> Gpu:
    """Return a GPU by name, whatever its case, spaces and dashes.

    Raises:
        UsageError: there is no such GPU in the table; the nearest names are given.
    """
    known = {_plain(gpu.name): gpu for gpu in load_gpus()}
    if _plain(name) in known:
        return known[_plain(name)]
    starting = [gpu.name for key, gpu in known.items() if key.startswith(_plain(name))]
    near = [known[key].name for key in get_close_matches(_plain(name), known, n=2)]
    names = ", ".join(starting or near or [gpu.name for gpu in known.values()])
    raise UsageError(f"--gpu: unknown '{name}'; there are {names}")


def _plain(name: str) -> str:
    return "".join(letter for letter in name.lower() if letter.isalnum())
