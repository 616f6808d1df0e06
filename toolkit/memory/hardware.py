"""GPUs and the memory that PyTorch finds on them, from `hardware.csv`, which names its sources.

A device reports less than it is sold with: the driver keeps some, and error correction a sixteenth
of what has no memory of its own for it. Devices of one name differ by up to half a percent; the
lowest that was found stands in the table.
"""

import csv
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path

from toolkit.errors import UsageError
from toolkit.memory.calibration import Calibration

GIB = 2**30
_UNITS = {"gib": 2**30, "mib": 2**20, "gb": 10**9, "mb": 10**6}
# Words of a name that distinguish no GPU from another.
_VENDOR = r"nvidia|geforce|quadro|tesla|rtx|amd|instinct|generation|(?<=\d)gb|[^a-z0-9]"


def in_gib(size: int) -> str:
    """Return bytes as GiB with two decimals, small ones with two digits."""
    return f"{size / GIB:.2f}" if size > GIB / 10 else f"{size / GIB:.2g}"


def with_unit(size: int) -> str:
    """Return bytes with three digits in GiB, in MiB or KiB where that is a hundredth or less."""
    for unit, name in ((GIB, "GiB"), (2**20, "MiB")):
        if size > unit / 100:
            return f"{size / unit:.3g} {name}"
    return f"{size / 2**10:.3g} KiB"


@dataclass(frozen=True)
class Gpu:
    """A device; `reported_as` are the names that `nvidia-smi` and PyTorch print for it."""

    name: str
    memory_bytes: int
    calibration: Calibration
    reported_as: tuple[str, ...] = ()

    def holds(self, allocated: int) -> bool:
        """Whether a peak of allocated bytes fits, with context and fragmentation allowed for."""
        return self.calibration.device_bytes(allocated) <= self.memory_bytes


def load_gpus(calibrations: Mapping[str, Calibration] | None = None) -> list[Gpu]:
    """Return the known GPUs, the smallest first, each with its calibration where there is one.

    Args:
        calibrations: by the name that PyTorch gives a GPU.
    """
    with Path(__file__).with_name("hardware.csv").open() as file:
        gpus = list(_gpus(csv.DictReader(file), calibrations or {}))
    return sorted(gpus, key=lambda gpu: gpu.memory_bytes)


def _gpus(rows: "csv.DictReader[str]", calibrations: Mapping[str, Calibration]) -> Iterator[Gpu]:
    for row in rows:
        names = tuple(name for name in row["reported_as"].split(";") if name)
        measured = next((calibrations[name] for name in names if name in calibrations), None)
        size = round(float(row["memory_gib"]) * GIB)
        yield Gpu(row["gpu"], size, measured or Calibration(), names)


def find_gpu(name: str, calibrations: Mapping[str, Calibration] | None = None) -> Gpu:
    """Return a GPU by a name of its own or one that is reported, or a size such as `24GiB`.

    Case, spaces, dashes and the vendor's words do not matter.

    Raises:
        UsageError: there is no such GPU in the table; the nearest names are given.
    """
    if size := re.fullmatch(r"(\d+(?:\.\d+)?) ?([gm]i?b)", name.strip().lower()):
        return Gpu(name, round(float(size[1]) * _UNITS[size[2]]), Calibration())
    gpus = load_gpus(calibrations)
    known = {_plain(spelling): gpu for gpu in gpus for spelling in (*gpu.reported_as, gpu.name)}
    plain = _plain(name)
    if plain in known:
        return known[plain]
    starting = [gpu.name for gpu in gpus if plain and _plain(gpu.name).startswith(plain)]
    near = [known[key].name for key in get_close_matches(plain, known, n=3)]
    names = ", ".join(dict.fromkeys(starting or near or [gpu.name for gpu in gpus]))
    raise UsageError(f"--gpu: unknown '{name}'; there are {names}, or give a size such as 24GiB")


def _plain(name: str) -> str:
    return re.sub(_VENDOR, "", name.lower())
