"""Compares a prepared folder with its index, byte for byte: `toolkit data verify`."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from toolkit.data.durable import sha256_of
from toolkit.data.index import (
    INDEX_NAME,
    Index,
    ShardEntry,
    check_shard,
    read_index,
    unlisted_shards,
)
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


def verify_shards(folder: str | Path) -> VerifiedShards:
    """Read every shard of a prepared folder and compare it with `index.json`.

    Raises:
        UsageError: the folder doesn't exist or has no index.
        UntrustedError: one sentence per line for everything that is not as it was written.
    """
    folder = Path(folder)
    index = read_index(folder) if folder.is_dir() else None
    if index is None:
        raise UsageError(
            f"{folder}: not a prepared folder, it has no {INDEX_NAME}; `toolkit data prepare` "
            f"writes one at its end"
        )
    problems = list(shard_problems(folder, index))
    if problems:
        raise UntrustedError("\n".join(problems))
    return VerifiedShards(folder, index)


def shard_problems(folder: Path, index: Index) -> Iterator[str]:
    """Yield a sentence for each shard that is missing, surplus or not as the index says."""
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
            return f"{path}: SHA-256 {found}, but {INDEX_NAME} says {entry.sha256}"
        largest = shard.largest()
    except ToolkitError as error:
        return str(error)
    except OSError as error:
        return f"{path}: cannot be read: {error.strerror}"
    if largest != entry.max_token_id:
        return f"{path}: largest id {largest}, but {INDEX_NAME} says {entry.max_token_id}"
    return None
