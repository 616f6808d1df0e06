"""Writes tokens as shards in llm.c's layout; each shard appears whole or not at all."""

import os
from pathlib import Path
from typing import BinaryIO

import numpy as np

from toolkit.data.durable import publish, sha256_of, temporary_name
from toolkit.data.index import ShardEntry
from toolkit.data.shards import HEADER_BYTES, header, token_type
from toolkit.errors import UsageError

# The header counts tokens in an int32.
MAX_SHARD_TOKENS = 2**31 - 1


def shard_name(number: int) -> str:
    """Return the file name of a shard, counted from 0."""
    return f"shard_{number:06d}.bin"


class ShardWriter:
    """Cuts a stream of tokens into shards of `shard_tokens`; the last one is shorter.

    Raises:
        UsageError: a shard would hold too many tokens.
    """

    def __init__(self, folder: Path, *, shard_tokens: int, vocabulary_size: int) -> None:
        if not 1 <= shard_tokens <= MAX_SHARD_TOKENS:
            raise UsageError(
                f"a shard holds 1 to {MAX_SHARD_TOKENS} tokens, got shard_tokens {shard_tokens}"
            )
        self.folder = folder
        self.shard_tokens = shard_tokens
        self.vocabulary_size = vocabulary_size
        self.entries: list[ShardEntry] = []
        self._type = token_type(vocabulary_size)
        self._file: BinaryIO | None = None
        self._count = 0
        self._largest = 0

    def append(self, tokens: np.ndarray) -> None:
        """Write the next tokens, an array of any integer type.

        Raises:
            UsageError: an id lies outside the vocabulary, and would wrap around.
        """
        wrong = tokens[(tokens < 0) | (tokens >= self.vocabulary_size)]
        if wrong.size:
            raise UsageError(
                f"token id {int(wrong[0])} is outside a vocabulary of {self.vocabulary_size}"
            )
        while tokens.size:
            room = self.shard_tokens - self._count
            self._write(tokens[:room])
            tokens = tokens[room:]
            if self._count == self.shard_tokens:
                self._finish_shard()

    def finish(self) -> tuple[ShardEntry, ...]:
        """Close the last shard and return all of them."""
        if self._count:
            self._finish_shard()
        return tuple(self.entries)

    @property
    def _path(self) -> Path:
        return self.folder / shard_name(len(self.entries))

    def _write(self, tokens: np.ndarray) -> None:
        if self._file is None:
            self._file = open(temporary_name(self._path), "wb")  # noqa: SIM115
            self._file.seek(HEADER_BYTES)
        self._file.write(tokens.astype(self._type).tobytes())
        self._count += tokens.size
        self._largest = max(self._largest, int(tokens.max()))

    def _finish_shard(self) -> None:
        assert self._file is not None
        with self._file as file:
            file.seek(0)
            file.write(header(self._count, self._type))
            file.flush()
            os.fsync(file.fileno())
        digest = sha256_of(temporary_name(self._path))
        entry = ShardEntry(
            file=self._path.name,
            tokens=self._count,
            bytes=HEADER_BYTES + self._count * self._type.itemsize,
            sha256=digest,
            max_token_id=self._largest,
        )
        publish(self._path)
        self.entries.append(entry)
        self._file, self._count, self._largest = None, 0, 0
