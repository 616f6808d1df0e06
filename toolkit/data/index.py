"""`index.json` of a prepared folder: which shards it holds, from what, and how to know them again.

Everything is written by `toolkit.data.prepare`, after the shards; a folder without it is either
somebody else's or was never finished.
"""

import hashlib
import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from toolkit.counted import counted
from toolkit.data.shards import Shard, inspect_shard
from toolkit.errors import UntrustedError, UsageError

INDEX_NAME = "index.json"
# There from before the first shard until after the index: what an interrupted `prepare` left.
MARKER_NAME = ".incomplete"
_FORMAT = "scaling-toolkit shards"
_VERSION = 1


@dataclass(frozen=True, kw_only=True)
class ShardEntry:
    """One shard as it was written; `bytes` is the size of the file."""

    file: str
    tokens: int
    bytes: int
    sha256: str
    max_token_id: int


@dataclass(frozen=True, kw_only=True)
class SourceEntry:
    """One input file; `skipped` counts its bad documents that were skipped."""

    path: str
    bytes: int
    sha256: str
    documents: int
    skipped: int


@dataclass(frozen=True, kw_only=True)
class Vocabulary:
    """The vocabulary of the tokens; `sha256` is that of its rank file."""

    name: str
    size: int
    sha256: str


@dataclass(frozen=True, kw_only=True)
class Index:
    """What a prepared folder holds, in the order in which it is read."""

    vocabulary: Vocabulary
    shard_tokens: int
    shards: tuple[ShardEntry, ...]
    sources: tuple[SourceEntry, ...]

    @property
    def tokens(self) -> int:
        """Tokens of all shards."""
        return sum(shard.tokens for shard in self.shards)

    @property
    def documents(self) -> int:
        """Documents of all sources."""
        return sum(source.documents for source in self.sources)

    @property
    def skipped(self) -> int:
        """Bad documents that were skipped."""
        return sum(source.skipped for source in self.sources)

    def describe(self) -> str:
        """Return what the folder holds, as a part of a sentence."""
        return (
            f"{self.tokens:,} tokens of {counted(self.documents, 'document')} in "
            f"{counted(len(self.shards), 'shard')}"
        )

    def to_json(self) -> str:
        """Return the text of `index.json`; its `sha256` is that of the same text without it."""
        totals = {"tokens": self.tokens, "documents": self.documents, "skipped": self.skipped}
        fields = {"format": _FORMAT, "version": _VERSION, **totals, **asdict(self)}
        text = json.dumps(fields, indent=1)
        digest = hashlib.sha256(text.encode()).hexdigest()
        return text.removesuffix("\n}") + f',\n "sha256": "{digest}"\n}}\n'


def read_index(folder: Path) -> Index | None:
    """Return the index of a folder, or None where it has none.

    Raises:
        UntrustedError: `index.json` is there and is not what `prepare` writes.
    """
    path = folder / INDEX_NAME
    try:
        text = path.read_bytes()
    except FileNotFoundError:
        return None
    except OSError as error:
        raise UntrustedError(f"{path}: cannot be read: {error.strerror}") from None
    try:
        index = _parse(json.loads(text))
    except (ValueError, TypeError, KeyError, RecursionError) as error:
        raise UntrustedError(f"{path}: not the index of a prepared folder ({error!r})") from None
    if text != index.to_json().encode():
        raise UntrustedError(f"{path}: changed since it was written")
    return index


def refuse_unfinished(folder: Path) -> None:
    """Refuse a folder without an index where `prepare` has begun.

    Raises:
        UsageError: names what to do.
    """
    if (folder / MARKER_NAME).exists():
        raise UsageError(
            f"{folder}: `toolkit data prepare` was interrupted here or still runs; let it end or "
            f"start it again"
        )


def check_shard(folder: Path, entry: ShardEntry) -> Shard:
    """Return the shard that `entry` describes, after comparing name, size and header with it.

    Raises:
        UntrustedError: the shard is missing, or differs from what was written.
    """
    path = folder / entry.file
    if not path.is_file():
        raise UntrustedError(f"{path}: missing, but {INDEX_NAME} lists it")
    size = path.stat().st_size
    if size != entry.bytes:
        raise UntrustedError(f"{path}: {size} bytes, but {INDEX_NAME} has {entry.bytes}")
    shard = inspect_shard(path)
    if shard.layout != "llm.c" or shard.tokens != entry.tokens:
        raise UntrustedError(
            f"{path}: {shard.tokens} tokens in {shard.layout}'s layout, but {INDEX_NAME} has "
            f"{entry.tokens} in llm.c's"
        )
    return shard


def unlisted_shards(folder: Path, index: Index) -> list[Path]:
    """Return the shards in a folder that its index doesn't know."""
    listed = {entry.file for entry in index.shards}
    return [path for path in shard_files(folder) if path.name not in listed]


def shard_files(folder: Path) -> list[Path]:
    """Return the files of a folder that are shards by name, without hidden ones, sorted."""
    return sorted(
        path
        for path in folder.iterdir()
        if path.suffix in (".bin", ".npy") and not path.name.startswith(".")
    )


def _parse(fields: dict[str, Any]) -> Index:
    if (fields["format"], fields["version"]) != (_FORMAT, _VERSION):
        raise ValueError(f"format {fields['format']!r}, version {fields['version']!r}")
    index = Index(
        vocabulary=Vocabulary(**fields["vocabulary"]),
        shard_tokens=fields["shard_tokens"],
        shards=tuple(ShardEntry(**entry) for entry in fields["shards"]),
        sources=tuple(SourceEntry(**entry) for entry in fields["sources"]),
    )
    _check_types(index.vocabulary)
    for source in index.sources:
        _check_types(source)
    for shard in index.shards:
        _check_types(shard)
        if Path(shard.file).name != shard.file:
            raise ValueError(f"shard {shard.file!r} is no plain file name")
    return index


def _check_types(entry: ShardEntry | SourceEntry | Vocabulary) -> None:
    for name, value in vars(entry).items():
        expected = type(entry).__annotations__[name]
        if type(value) is not expected or (expected is int and value < 0):
            raise ValueError(f"{name} {value!r}")
