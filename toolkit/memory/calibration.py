"""What a GPU needs beyond allocated bytes, measured by a run on it and kept for later estimates.

The file is `~/.cache/scaling-toolkit/memory.json` (below `XDG_CACHE_HOME` where that is set). Each
run on a GPU writes it; without one, constants from public reports are used.
"""

import json
import os
from dataclasses import asdict, dataclass
from pathlib import Path

CONTEXT_BYTES = 2**30
"""CUDA context, libraries and NCCL: 0.3 to 1.4 GB have been reported."""

RESERVED_OVER_ALLOCATED = 1.1
"""Rounding and fragmentation of PyTorch's allocator: public runs report 1.006 to 1.6."""


@dataclass(frozen=True)
class Calibration:
    """Bytes outside PyTorch's allocator, and how much it holds over what it has given out."""

    context_bytes: int = CONTEXT_BYTES
    reserved_over_allocated: float = RESERVED_OVER_ALLOCATED

    def device_bytes(self, allocated: int) -> int:
        """Return what a device must have for a peak of allocated bytes."""
        return round(allocated * self.reserved_over_allocated) + self.context_bytes


def calibrate(*, allocated: int, reserved: int, device_total: int) -> Calibration:
    """Return what a measured run says; all in bytes, the device used by this run alone."""
    return Calibration(max(0, device_total - reserved), max(1.0, reserved / allocated))


def calibration_file() -> Path:
    """Return where calibrations are kept."""
    cache = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(cache) / "scaling-toolkit" / "memory.json"


def load_calibration() -> Calibration:
    """Return the last calibration, or the constants where there is none that can be read."""
    try:
        return Calibration(**json.loads(calibration_file().read_text()))
    except (OSError, ValueError, TypeError):
        return Calibration()


def save_calibration(calibration: Calibration) -> None:
    """Keep a calibration; a host that lets nothing be written goes on without."""
    path = calibration_file()
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(asdict(calibration)) + "\n")
    except OSError:
        return
