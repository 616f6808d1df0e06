"""Compares shards with what can be known of them, byte for byte: `toolkit data verify`."""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from toolkit.counted import counted
from toolkit.data.durable import sha256_of
from toolkit.data.index import (
    INDEX_NAME,
    Index,
    ShardEntry,
    check_shard,
    read_index,
    refuse_unfinished,
    shard_files,
    unlisted_shards,
)
from toolkit.data.shards import Shard, inspect_shard
from toolkit.data.vocabulary import VOCABULARY_SIZE
from toolkit.errors import ToolkitError, UntrustedError, UsageError


@dataclass(frozen=True)
class VerifiedShards:
    """A folder whose shards are what was written."""

    folder: Path
    index: Index

    @property
    def summary(self) -> str:
        """One line for a person."""
        return f"{self.folder}: intact, {self.index.describe()}"


@dataclass(frozen=True)
class PlausibleShards:
    """Shards without an index, of which nothing contradicts that GPT-2's tokens were written."""

    folder: Path
    shards: tuple[Shard, ...]
    largest: int

    @property
    def summary(self) -> str:
        """What was checked and what could not be, in a line each."""
        layouts = Counter(shard.layout for shard in self.shards)
        listed = ", ".join(f"{count:,} in {name}'s layout" for name, count in layouts.items())
        tokens = sum(shard.tokens for shard in self.shards)
        bare = "; nanoGPT's layout has no header, its tokens are counted by the size of the file"
        return (
            f"{self.folder}: {tokens:,} tokens in "
            f"{counted(len(self.shards), 'shard')} ({listed}), headers and sizes "
            f"agree, largest id {self.largest:,} of GPT-2's {VOCABULARY_SIZE - 1:,}\n"
            f"not checked: there is no {INDEX_NAME}, so neither hashes nor the list of shards, the "
            f"vocabulary or the documents are known{bare if layouts['nanoGPT'] else ''}"
        )


def verify_shards(folder: str | Path) -> VerifiedShards | PlausibleShards:
    """Read every shard of a folder and compare it with `index.json`.

    Shards that llm.c, build-nanogpt or nanoGPT wrote have none; their headers, sizes and the range
    of their ids are checked.

    Raises:
        UsageError: the folder doesn't exist, holds no shards, or `prepare` has not finished it.
        UntrustedError: one sentence per line for everything that is not as it was written, or
            cannot be what was.
    """
    folder = Path(folder)
    if not folder.is_dir():
        raise UsageError(f"{folder}: no such folder of shards")
    index = read_index(folder)
    if index is None:
        return _verify_unlisted(folder)
    problems = list(shard_problems(folder, index))
    if problems:
        raise UntrustedError("\n".join(problems))
    return VerifiedShards(folder, index)


def _verify_unlisted(folder: Path) -> PlausibleShards:
    refuse_unfinished(folder)
    paths = shard_files(folder)
    if not paths:
        raise UsageError(f"{folder}: holds no {INDEX_NAME} and no shard (.bin or .npy)")
    shards, largest, problems = [], 0, []
    for path in paths:
        try:
            shard = inspect_shard(path)
            largest = max(largest, shard.scan(vocab_size=VOCABULARY_SIZE))
            shards.append(shard)
        except ToolkitError as error:
            problems.append(str(error))
    if problems:
        raise UntrustedError("\n".join(problems))
    return PlausibleShards(folder, tuple(shards), largest)


def shard_problems(folder: Path, index: Index) -> Iterator[str]:
    """Yield a sentence for each shard that is missing, surplus or not as in the index."""
    for entry in index.shards:
        problem = _problem(folder, entry)
        if problem:
            yield problem
    for path in unlisted_shards(folder, index):
        yield f"{path}: not listed in {INDEX_NAME}"


def _problem(folder: Path, entry: ShardEntry) -> str | None:
    path = folder / entry.file
    try:
        shard = check_shard(folder, entry)
        found = sha256_of(path)
        if found != entry.sha256:
            return f"{path}: SHA-256 {found}, but {INDEX_NAME} has {entry.sha256}"
        largest = shard.largest()
    except ToolkitError as error:
        return str(error)
    except OSError as error:
        return f"{path}: cannot be read: {error.strerror}"
    if largest != entry.max_token_id:
        return f"{path}: largest id {largest}, but {INDEX_NAME} has {entry.max_token_id}"
    return None
