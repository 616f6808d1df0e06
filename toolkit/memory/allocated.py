"""Bytes that are allocated at this moment, for a few microseconds each time it is asked."""

import ctypes
from functools import cache

import torch

_FIELDS = (
    *("arena", "ordblks", "smblks", "hblks", "hblkhd"),
    *("usmblks", "fsmblks", "uordblks", "fordblks", "keepcost"),
)
_PROBE = 2**24


class _MallInfo(ctypes.Structure):
    """`struct mallinfo2` of glibc 2.33 and later; see mallinfo(3)."""

    _fields_ = [(name, ctypes.c_size_t) for name in _FIELDS]


def allocated(device: torch.device) -> int | None:
    """Return the bytes in use: of a GPU by PyTorch, of a CPU by all that this process allocated.

    The latter come from the C library's own account (mallinfo(3): `uordblks` and `hblkhd`); None
    where it keeps none, or PyTorch's CPU allocator goes by another one.
    """
    if device.type == "cuda":
        return torch.cuda.memory_allocated(device)
    return _in_use() if _sees_tensors() else None


def _in_use() -> int:
    found = _library().mallinfo2()
    return int(found.uordblks + found.hblkhd)


@cache
def _library() -> ctypes.CDLL:
    library = ctypes.CDLL(None)
    library.mallinfo2.restype = _MallInfo
    return library


@cache
def _sees_tensors() -> bool:
    try:
        before = _in_use()
    except AttributeError:
        return False
    probe = torch.empty(_PROBE, dtype=torch.uint8)
    return _in_use() - before >= probe.nbytes
