"""Files that appear whole or not at all, whenever the process or the machine stops."""

import hashlib
import os
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
    while block := file.read(_BLOCK_BYTES):
        digest.update(block)
    return digest.hexdigest()


def temporary_name(path: Path) -> Path:
    """Return the hidden name in the same folder under which `path` is written."""
    return path.with_name(f".{path.name}.tmp")


def write_durably(path: Path, data: bytes) -> None:
    """Write a small file under its temporary name, then `publish` it."""
    with open(temporary_name(path), "wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    publish(path)


def publish(path: Path) -> None:
    """Give a complete, synchronised temporary file its final name, for good."""
    os.replace(temporary_name(path), path)
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)
