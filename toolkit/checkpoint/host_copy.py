"""Host memory that holds a copy of this rank's share while it is written."""

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
import torch

from toolkit.checkpoint.tensors import Entry
from toolkit.engines.torch_internals import lock_pages
from toolkit.errors import UsageError
from toolkit.memory.hardware import with_unit


class HostCopy:
    """A copy of a rank's share in memory that is the same from save to save.

    Every page is touched at once: the first use of fresh memory takes the system several times as
    long as the copy itself, and training would wait for it. A GPU copies into pages that are locked
    where they are: PyTorch's own pinned memory comes in powers of two, up to twice the state.

    Args:
        pieces: the largest share there will be, whose values are not read yet.
        device: where the state is.

    Raises:
        UsageError: the host does not let that much be locked.
    """

    def __init__(self, pieces: Sequence[Entry], device: torch.device) -> None:
        self.device = device
        size = sum(piece.bytes for piece in pieces) // 4
        self._values = np.empty(size, dtype=np.float32)
        self._values.fill(0.0)
        if device.type == "cuda" and size:
            self._lock()

    def _lock(self) -> None:
        try:
            lock_pages(self._values)
        except RuntimeError as error:
            raise UsageError(
                f"training.async_save: {with_unit(self._values.nbytes)} of host memory per rank "
                f"cannot be locked for the GPU ({error}); set it to false"
            ) from None

    @torch.no_grad()
    def take(self, pieces: Sequence[Entry]) -> list[Entry]:
        """Copy the values of all pieces; return the same pieces, to be read from the copy."""
        copied = []
        end = 0
        for piece in pieces:
            start, end = end, end + piece.bytes // 4
            values = torch.from_numpy(self._values[start:end])
            values.copy_(piece.read(), non_blocking=True)
            copied.append(replace(piece, read=_same(values)))
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)
        return copied


def _same(values: torch.Tensor) -> Callable[[], torch.Tensor]:
    return lambda: values
