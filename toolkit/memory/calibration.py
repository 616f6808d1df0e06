"""What a GPU needs beyond allocated bytes: assumed from public runs, or measured by one here.

The file is `~/.cache/scaling-toolkit/memory.json` (below `XDG_CACHE_HOME` where that is set): for
each GPU, by the name that PyTorch gives it, the run that allocated most there.
"""

import os
from collections.abc import Mapping
from pathlib import Path

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError

from toolkit.errors import UsageError

_GIB = 2**30

CONTEXT_BYTES = _GIB
"""CUDA context, libraries and NCCL's first communicator: 0.33 to 1.49 GiB in `outside.csv`, whose
median this is."""

RESERVED_OVER_ALLOCATED = 1.27
"""Rounding and fragmentation of PyTorch's allocator: the median of the runs in `reserved.csv`."""

PUBLIC_RUNS = "19 public runs (1.01 to 1.60)"
"""How many they are, and their range."""


class _Model(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False)


class Measured(_Model):
    """Where a calibration comes from: the run's folder, its peak, its GPU and its packages."""

    run: str
    allocated_bytes: int = Field(gt=0)
    device: str
    versions: dict[str, str]


class Calibration(_Model):
    """Bytes outside PyTorch's allocator, and how much it holds over what it has given out.

    `measured` names the run; without it both are assumed.
    """

    context_bytes: int = Field(default=CONTEXT_BYTES, ge=0)
    reserved_over_allocated: float = Field(default=RESERVED_OVER_ALLOCATED, ge=1, le=2**50)
    measured: Measured | None = None

    def device_bytes(self, allocated: int) -> int:
        """Return what a device must have for a peak of allocated bytes."""
        return round(allocated * self.reserved_over_allocated) + self.context_bytes

    def describe(self) -> str:
        """Return what it allows for, and from where that is known."""
        allowance = (
            f"{self.context_bytes / _GIB:.2g} GiB for CUDA and NCCL and "
            f"{self.reserved_over_allocated:.3g} reserved bytes for each allocated one"
        )
        if self.measured is None:
            return f"{allowance}, the median of {PUBLIC_RUNS}"
        size = self.measured.allocated_bytes / _GIB
        torch = self.measured.versions.get("torch", "of an unknown version")
        return (
            f"{allowance}, measured on {self.measured.device} by {self.measured.run} "
            f"({size:.3g} GiB allocated, torch {torch})"
        )


_BY_DEVICE = TypeAdapter(dict[str, Calibration])


def calibrate(*, reserved: int, device_total: int, measured: Measured) -> Calibration:
    """Return what follows from a measured run; all in bytes, the device used by this run alone."""
    return Calibration(
        context_bytes=max(0, device_total - reserved),
        reserved_over_allocated=max(1.0, reserved / measured.allocated_bytes),
        measured=measured,
    )


def calibration_file() -> Path:
    """Return where calibrations are kept."""
    cache = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(cache) / "scaling-toolkit" / "memory.json"


def load_calibrations() -> dict[str, Calibration]:
    """Return the calibrations by PyTorch's name of the GPU; none where there is no file.

    Raises:
        UsageError: the file is there and holds something else.
    """
    path = calibration_file()
    try:
        return _BY_DEVICE.validate_json(path.read_bytes())
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(map(str, first["loc"]))
        problem = f"{place}: {first['msg']}" if place else first["msg"]
        raise UsageError(
            f"{path}: holds no calibration ({problem}); delete it, the next run on a GPU writes one"
        ) from None
    except OSError:
        return {}


def save_calibration(found: Calibration) -> None:
    """Keep a measured calibration, unless a larger run on such a GPU has left one.

    A damaged file is replaced; a host that lets nothing be written continues without.
    """
    try:
        kept = load_calibrations()
    except UsageError:
        kept = {}
    if found.measured is None or _size(kept, found.measured.device) > _size_of(found):
        return
    kept[found.measured.device] = found
    path = calibration_file()
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        whole = path.with_name(f"{path.name}.{os.getpid()}")
        whole.write_bytes(_BY_DEVICE.dump_json(kept, indent=2))
        whole.replace(path)
    except OSError:
        return


def _size(kept: Mapping[str, Calibration], device: str) -> int:
    return _size_of(kept[device]) if device in kept else 0


def _size_of(calibration: Calibration) -> int:
    return calibration.measured.allocated_bytes if calibration.measured else 0
