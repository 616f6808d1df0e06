"""Small shards written by hand, so that the readers are not tested by our own writer."""

import struct
from pathlib import Path

import numpy as np

from toolkit.data.index import Index, ShardEntry, SourceEntry, Vocabulary


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


def write_indexed_folder(folder: Path, *, vocabulary=50_257, **changes) -> Path:
    """One shard of the ids 0 to 9 and its index, where `changes` replace what it says of it."""
    path = write_llmc(folder / "shard_000000.bin", range(10))
    entry = {"file": path.name, "tokens": 10, "bytes": 1044, "sha256": "0", "max_token_id": 9}
    index = Index(
        vocabulary=Vocabulary(name="gpt2", size=vocabulary, sha256="0"),
        shard_tokens=100,
        shards=(ShardEntry(**{**entry, **changes}),),
        sources=(SourceEntry(path="a.txt", bytes=1, sha256="0", documents=1, skipped=0),),
    )
    (folder / "index.json").write_text(index.to_json())
    return folder
