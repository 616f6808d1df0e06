"""Small shards written by hand, so that the readers are not tested by our own writer."""

import struct
from pathlib import Path

import numpy as np


def write_llmc(path: Path, tokens, *, magic=20240520, version=1, count=None) -> Path:
    tokens = np.asarray(tokens, dtype="<u2")
    count = len(tokens) if count is None else count
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(
        struct.pack("<3i", magic, version, count).ljust(1024, b"\0") + tokens.tobytes()
    )
    return path


def write_bare(path: Path, tokens) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(np.asarray(tokens, dtype="<u2").tobytes())
    return path
