"""Files that appear whole or not at all, whenever the process or the machine stops."""

import hashlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

_BLOCK_BYTES = 2**20


def sha256_of(path: Path) -> str:
    """Return the SHA-256 of a file, read in blocks."""
    with open(path, "rb") as file:
        return sha256_of_rest(file)


def sha256_of_rest(file: BinaryIO) -> str:
    """Return the SHA-256 of what an open file still holds."""
    digest = hashlib.sha256()
    for block in blocks(file):
        digest.update(block)
    return digest.hexdigest()


def blocks(file: BinaryIO, size: int = _BLOCK_BYTES) -> Iterator[bytes]:
    """Yield what an open file still holds, `size` bytes at a time.

    Python makes room for what is asked for, so a small file is not asked for more than it has.
    """
    size = min(size, os.fstat(file.fileno()).st_size + 1)
    while block := file.read(size):
        yield block


def temporary_name(path: Path) -> Path:
    """Return the hidden name in the same folder under which `path` is written."""
    return path.with_name(f".{path.name}.tmp")


def write_durably(path: Path, data: bytes) -> None:
    """Write a small file under its temporary name, then `publish` it."""
    write_aside(path, data)
    publish(path)


def write_aside(path: Path, data: bytes) -> None:
    """Have a small file on the disk under its temporary name."""
    with open(temporary_name(path), "wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


def publish(path: Path) -> None:
    """Give a complete, synchronised temporary file its final name, for good."""
    os.replace(temporary_name(path), path)
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)
