"""Tensors in safetensors files, written and read one at a time.

The layout (https://github.com/huggingface/safetensors, "Format"): the header's length as 8 bytes,
little-endian; the header, JSON from name to dtype, shape and place; the values, back to back.
"""

import hashlib
import json
import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

_ALIGNMENT = 8


@dataclass(frozen=True)
class Fingerprint:
    """What a file must be to be the one that was written."""

    bytes: int
    sha256: str


@dataclass(frozen=True)
class Entry:
    """A tensor to be written; `read` returns it, in fp32, when its turn has come."""

    name: str
    shape: tuple[int, ...]
    read: Callable[[], torch.Tensor]

    @property
    def bytes(self) -> int:
        """Size of the values."""
        return 4 * torch.Size(self.shape).numel()


def write_tensors(path: Path, entries: Sequence[Entry]) -> Fingerprint:
    """Write a safetensors file and have it on the disk; one tensor at a time is in memory.

    A second thread computes the hash, which takes about as long as a fast disk does.

    Returns:
        The fingerprint of what was handed to the disk.

    Raises:
        OSError: the file cannot be written.
    """
    digest = hashlib.sha256()
    size = 0
    with path.open("wb", buffering=0) as file, ThreadPoolExecutor(1, "hash") as hashing:
        for block in _blocks(entries):
            hashed = hashing.submit(digest.update, block)
            _write_all(file.fileno(), block)
            hashed.result()
            size += len(block)
        os.fsync(file.fileno())
    return Fingerprint(size, digest.hexdigest())


def _blocks(entries: Sequence[Entry]) -> Any:
    yield memoryview(_header(entries))
    for entry in entries:
        values = entry.read().detach().to("cpu", torch.float32).contiguous().view(-1)
        if values.numel():
            yield values.numpy().data.cast("B")


def _header(entries: Sequence[Entry]) -> bytes:
    fields: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    end = 0
    for entry in entries:
        start, end = end, end + entry.bytes
        fields[entry.name] = {
            "dtype": "F32",
            "shape": list(entry.shape),
            "data_offsets": [start, end],
        }
    text = json.dumps(fields, separators=(",", ":")).encode()
    text += b" " * (-len(text) % _ALIGNMENT)
    return len(text).to_bytes(8, "little") + text


def _write_all(descriptor: int, block: memoryview) -> None:
    """`os.write` may write less than it is given, and never more than 2 GiB."""
    while len(block):
        block = block[os.write(descriptor, block) :]
