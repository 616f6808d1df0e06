"""The memory that a run's steps need, measured and compared with the estimate."""

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import psutil
import torch

from toolkit.errors import OutOfMemoryError
from toolkit.memory.advice import comparison_after, what_to_lower
from toolkit.memory.allocator import MeasuredPeak, measure_peak
from toolkit.memory.hardware import with_unit
from toolkit.memory.report import describe_parts
from toolkit.program.readers.peak import Peak
from toolkit.training.callback import Callback, Log, Progress
from toolkit.training.run_folder import package_versions


class MemoryPeak(Callback):
    """Measures a step where that costs nothing, on a GPU, and on a CPU only the second.

    Attributes:
        folder: the run folder, named in a GPU's calibration; None on all ranks but the first.
        bytes: the most that any rank had allocated in any measured step.
    """

    def __init__(
        self, device: torch.device, folder: Path | None, log: Log, *, estimate: Peak
    ) -> None:
        self.device = device
        self.folder = folder
        self.log = log
        self.estimate = estimate
        self.bytes: int | None = None
        self._measured: MeasuredPeak | None = None
        self._is_new = False

    @contextmanager
    def during_update(self, progress: Progress) -> Iterator[None]:
        """Measure the update; the first of a start is checked, and so not measured."""
        is_free = self.device.type == "cuda"
        self._is_new = progress.done > 0 if is_free else progress.done == 1
        if self._is_new:
            with measure_peak(self.device) as self._measured:
                yield
        else:
            yield

    def own_number(self) -> float:
        """Return this rank's peak in bytes."""
        return self._measured.bytes if self._measured and self._is_new else 0

    def after_step(self, progress: Progress, numbers: Sequence[float]) -> None:
        """Keep the largest peak of all ranks."""
        if self._is_new:
            self.bytes = max(self.bytes or 0, int(max(numbers)))

    def beyond_allocated(self) -> dict[str, int]:
        """Return what `metrics.jsonl` holds of the last step beside its allocated bytes."""
        return self._measured.on_device() if self._measured and self._is_new else {}

    def at_end(self, progress: Progress, error: Exception | None) -> None:
        """Compare with the estimate, and let later ones know what this GPU needs beyond it."""
        if error is not None:
            return
        if self.bytes:
            self.log(comparison_after(self.estimate, self.bytes))
        if self.folder is not None and self._measured is not None:
            self._measured.keep_calibration(run=str(self.folder), versions=package_versions())


def available_memory(device: torch.device) -> int:
    """Return the bytes of this rank's GPU, or its share of the host's memory."""
    if device.type == "cuda":
        return int(torch.cuda.get_device_properties(device).total_memory)
    ranks_here = int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
    return int(psutil.virtual_memory().total) // ranks_here


@contextmanager
def naming_out_of_memory(rank: int, estimate: Peak) -> Iterator[None]:
    """Turn an allocator's error into one sentence with what was expected and what to lower.

    Raises:
        OutOfMemoryError: the block ran out of memory.
    """
    try:
        yield
    except (RuntimeError, MemoryError) as error:
        # On a CPU PyTorch raises a plain RuntimeError that names its allocator.
        is_own = isinstance(error, torch.OutOfMemoryError | MemoryError)
        if not is_own and "DefaultCPUAllocator: can't allocate memory" not in str(error):
            raise
        reason = (str(error).splitlines() or ["the allocator gave no reason"])[0].rstrip(". ")
        raise OutOfMemoryError(
            f"out of memory on rank {rank}: {reason}; "
            f"estimated {with_unit(estimate.total)} per rank at {estimate.moment}: "
            f"{describe_parts(estimate.parts)}; {what_to_lower(estimate)}"
        ) from None
