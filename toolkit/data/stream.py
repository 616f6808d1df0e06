"""All shards of a data set as one stream of tokens."""

import glob
import hashlib
from bisect import bisect_right
from collections.abc import Sequence
from itertools import accumulate
from pathlib import Path
from typing import Any

import numpy as np

from toolkit.data.index import (
    check_shard,
    read_index,
    refuse_unfinished,
    shard_files,
    unlisted_shards,
)
from toolkit.data.shards import Shard, inspect_shard
from toolkit.errors import UntrustedError, UsageError

Sources = str | Path | Sequence[str | Path]
_SAMPLES = 256
_SAMPLE_TOKENS = 1024


class TokenStream:
    """The tokens of several shards, joined end to end; reads go straight to the files.

    `sources` are folders, shard files or glob patterns, joined in the order given. A folder with
    an `index.json` is read in the index's order and compared with it; any other folder, and what
    a pattern matches, in the order of the names.

    Every id is known to be below `vocab_size` before the first read: from the index where there
    is one, else by reading the shard once. Each read checks again.

    Raises:
        UsageError: nothing is found, a file is no shard, a shard is named twice, or an id lies
            outside the vocabulary.
        UntrustedError: a shard contradicts its own header or its folder's index.
    """

    def __init__(self, sources: Sources, *, vocab_size: int) -> None:
        names = [sources] if isinstance(sources, str | Path) else list(sources)
        self.name = ", ".join(str(name) for name in names)
        self._names = names
        self.vocab_size = vocab_size
        self.shards = [shard for name in names for shard in _open(str(name), vocab_size)]
        if not self.shards:
            raise UsageError("no shards are named")
        _refuse_repeats(self.shards)
        self._starts = [0, *accumulate(shard.tokens for shard in self.shards)]

    def __len__(self) -> int:
        """Tokens of all shards."""
        return self._starts[-1]

    def read(self, start: int, stop: int) -> np.ndarray:
        """Return tokens [start, stop) as an int64 array [stop - start].

        Raises:
            UntrustedError: a shard was cut short or removed since it was opened.
            UsageError: a shard was overwritten with ids outside the vocabulary.
        """
        if not 0 <= start < stop <= len(self):
            raise IndexError(f"tokens [{start}, {stop}) of a stream of {len(self)}")
        first = bisect_right(self._starts, start) - 1
        pieces = []
        for shard, begin in zip(self.shards[first:], self._starts[first:], strict=False):
            if begin >= stop:
                break
            low, high = max(start - begin, 0), min(stop - begin, shard.tokens)
            piece = shard.read(low, high)
            shard.check_range(piece, start=low, vocab_size=self.vocab_size)
            pieces.append(piece)
        return np.concatenate(pieces, dtype=np.int64)

    def fingerprint(self) -> dict[str, Any]:
        """Return what distinguishes these tokens from others without reading them all.

        That is their number, a SHA-256 over 256 samples spread evenly, and, of prepared folders,
        the SHA-256 of each shard and of the vocabulary.
        """
        digest = hashlib.sha256()
        kind = max((shard.type for shard in self.shards), key=lambda kind: kind.itemsize)
        for sample in range(_SAMPLES):
            start = sample * max(len(self) - _SAMPLE_TOKENS, 0) // (_SAMPLES - 1)
            stop = min(start + _SAMPLE_TOKENS, len(self))
            digest.update(self.read(start, stop).astype(kind).tobytes())
        folders = [Path(name) for name in self._names if Path(name).is_dir()]
        indexes = [index for folder in folders if (index := read_index(folder))]
        return {
            "tokens": len(self),
            "samples_sha256": digest.hexdigest(),
            "shards_sha256": [shard.sha256 for index in indexes for shard in index.shards],
            "vocabulary_sha256": [index.vocabulary.sha256 for index in indexes],
        }


def _open(name: str, vocab_size: int) -> list[Shard]:
    path = Path(name)
    if path.is_dir():
        return _open_folder(path, vocab_size)
    paths = [path] if path.exists() else sorted(Path(match) for match in glob.glob(name))
    if not paths:
        raise UsageError(f"'{name}' matches no shard; give a folder, a file or a pattern of them")
    return [_scanned(path, vocab_size) for path in paths]


def _open_folder(folder: Path, vocab_size: int) -> list[Shard]:
    index = read_index(folder)
    if index is None:
        refuse_unfinished(folder)
        return [_scanned(path, vocab_size) for path in _shards_of_one_split(folder)]
    vocabulary = index.vocabulary
    if vocabulary.size > vocab_size:
        raise UsageError(
            f"{folder}: prepared with the vocabulary '{vocabulary.name}' of {vocabulary.size:,} "
            f"tokens, but a vocabulary of {vocab_size:,} is expected; raise model.vocab_size"
        )
    shards = []
    for entry in index.shards:
        shard = check_shard(folder, entry)
        if entry.max_token_id >= vocab_size:
            shard.scan(vocab_size=vocab_size)
        shards.append(shard)
    extra = unlisted_shards(folder, index)
    if extra:
        raise UntrustedError(f"{extra[0]}: not listed in the folder's index.json")
    return shards


def _shards_of_one_split(folder: Path) -> list[Path]:
    """Without an index only the names can show that a folder holds training and validation data."""
    paths = shard_files(folder)
    if not paths:
        raise UsageError(f"{folder}: holds no shard (.bin or .npy)")
    splits = [split for split in ("train", "val") if any(split in path.name for path in paths)]
    if len(splits) == 2:
        raise UsageError(
            f"{folder}: holds train and val shards together; give a pattern such as "
            f"'{folder}/*train*'"
        )
    return paths


def _scanned(path: Path, vocab_size: int) -> Shard:
    shard = inspect_shard(path)
    shard.scan(vocab_size=vocab_size)
    return shard


def _refuse_repeats(shards: list[Shard]) -> None:
    seen = set()
    for shard in shards:
        real = shard.path.resolve()
        if real in seen:
            raise UsageError(f"{shard.path}: named twice, so its tokens would be seen twice")
        seen.add(real)
