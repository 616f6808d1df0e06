"""Token shards on disk: one sequence of token ids per file, in three layouts.

* llm.c `.bin`: 256 little-endian int32 (magic 20240520, version 1, number of tokens, zeros), then
  uint16 tokens; `write_datafile` in llm.c's `dev/data/data_common.py`. It is what we write. With
  magic 20240801 and version 7 the tokens are uint32, for a vocabulary above 65,536.
* nanoGPT `.bin`: bare uint16 tokens; `data/openwebtext/prepare.py`.
* build-nanogpt `.npy`: one-dimensional uint16 array; `fineweb.py`.

Nothing stays open between reads: a memory map that lives as long as a run makes resident memory
grow to the size of the data, and kills the process if the file is cut meanwhile.
"""

import os
import struct
import tokenize
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, Literal

import numpy as np

from toolkit.data.vocabulary import VOCABULARY_SIZE
from toolkit.errors import UntrustedError, UsageError

MAGIC = 20240520
HEADER_BYTES = 256 * 4
_WIDE_MAGIC = 20240801
_VERSIONS = {MAGIC: 1, _WIDE_MAGIC: 7}
NARROW, WIDE = np.dtype("<u2"), np.dtype("<u4")
"""The types of a shard's tokens."""
_TYPES: dict[int, np.dtype] = {MAGIC: NARROW, _WIDE_MAGIC: WIDE}
_HEADER_FIELDS_BYTES = 3 * 4
# Fewer could be zeros by chance.
_TELLING_TOKENS = 32
# 4 Mi tokens at a time: large enough for full disk speed, 8 MiB of memory.
_SCAN_TOKENS = 2**22


@dataclass(frozen=True)
class Shard:
    """Where the tokens of one file lie: `tokens` of them from byte `offset` on, each a `type`."""

    path: Path
    layout: Literal["llm.c", "nanoGPT", "build-nanogpt"]
    offset: int
    tokens: int
    type: np.dtype = NARROW

    def read(self, start: int, stop: int) -> np.ndarray:
        """Return tokens [start, stop) as an array of `type`, read from the file now.

        Raises:
            UntrustedError: the file is gone, unreadable or shorter than when it was inspected.
        """
        width = self.type.itemsize
        try:
            found = np.fromfile(
                self.path, self.type, count=stop - start, offset=self.offset + start * width
            )
            if len(found) == stop - start:
                return found
            left = max(os.path.getsize(self.path) - self.offset, 0) // width
        except OSError as error:
            raise UntrustedError(
                f"{self.path}: cannot be read any more: {error.strerror}"
            ) from None
        raise UntrustedError(
            f"{self.path}: ends after {left:,} tokens, but had {self.tokens:,} when it was opened; "
            f"it was cut short meanwhile"
        )

    def check_range(self, tokens: np.ndarray, *, start: int, vocab_size: int) -> None:
        """Refuse `tokens`, read from token `start` on, if one of them is no id of the vocabulary.

        Raises:
            UsageError: names the file, the first such id, its place and the limit.
        """
        if tokens.size == 0 or int(tokens.max()) < vocab_size:
            return
        first = int(np.argmax(tokens >= vocab_size))
        place = start + first
        hint = ", or vocab_size is too small" if vocab_size < VOCABULARY_SIZE else ""
        raise UsageError(
            f"{self.path}: token {place} (byte {self.offset + place * self.type.itemsize}) is id "
            f"{int(tokens[first])}, but a vocabulary of {vocab_size} ends at id {vocab_size - 1}; "
            f"the shard was made with another vocabulary{hint}"
        )

    def scan(self, *, vocab_size: int) -> int:
        """Read the whole file once, `check_range` it and return the largest id."""
        largest = 0
        for start, tokens in self._blocks():
            self.check_range(tokens, start=start, vocab_size=vocab_size)
            largest = max(largest, int(tokens.max()))
        return largest

    def largest(self) -> int:
        """Read the whole file once and return the largest id."""
        return self.scan(vocab_size=2 ** (8 * self.type.itemsize))

    def _blocks(self) -> Iterator[tuple[int, np.ndarray]]:
        for start in range(0, self.tokens, _SCAN_TOKENS):
            yield start, self.read(start, min(start + _SCAN_TOKENS, self.tokens))


def inspect_shard(path: Path) -> Shard:
    """Return where the tokens of a file lie, judged by its name, header and size.

    Raises:
        UsageError: the file cannot be read, holds no tokens, or has another layout, version or
            type of token; the message names what was found and what is expected.
        UntrustedError: the size of the file contradicts its header.
    """
    if path.suffix == ".npy":
        shard = _inspect_npy(path)
    elif path.suffix == ".bin":
        shard = _inspect_bin(path)
    else:
        raise UsageError(f"{path}: not a token shard; the name must end in .bin or .npy")
    if shard.tokens == 0:
        raise UsageError(f"{path}: holds no tokens")
    return shard


def token_type(vocabulary_size: int) -> np.dtype:
    """Return the narrowest type of a shard that holds every id of a vocabulary."""
    return NARROW if vocabulary_size <= 2**16 else WIDE


def header(tokens: int, kind: np.dtype = NARROW) -> bytes:
    """Return the 1,024 bytes before tokens of a type in llm.c's layout."""
    magic = MAGIC if kind == NARROW else _WIDE_MAGIC
    fields = np.zeros(HEADER_BYTES // 4, dtype="<i4")
    fields[:3] = magic, _VERSIONS[magic], tokens
    return fields.tobytes()


def _inspect_bin(path: Path) -> Shard:
    with _opened(path) as (file, size):
        start = file.read(HEADER_BYTES)
    fields = np.frombuffer(start.ljust(HEADER_BYTES, b"\0"), dtype="<i4")
    magic, version, tokens = (int(field) for field in fields[:3])
    # Read as bare uint16, either magic would begin with an id above 55,000, which GPT-2's
    # vocabulary does not have: no nanoGPT file can be mistaken for llm.c's.
    if magic not in _TYPES:
        _refuse_damaged_header(path, start, size)
        _refuse_wide_tokens(path, start)
        _check_size(path, size, offset=0, tokens=size // NARROW.itemsize)
        return Shard(path, "nanoGPT", 0, size // NARROW.itemsize)
    if len(start) < HEADER_BYTES:
        raise UntrustedError(
            f"{path}: cut off inside its header ({len(start)} of {HEADER_BYTES:,} bytes)"
        )
    if version != (expected := _VERSIONS[magic]):
        raise UsageError(f"{path}: header version {version}, but version {expected} is expected")
    if tokens < 0:
        raise UntrustedError(f"{path}: the header has {tokens} tokens")
    kind = _TYPES[magic]
    _check_size(path, size, offset=HEADER_BYTES, tokens=tokens, kind=kind)
    return Shard(path, "llm.c", HEADER_BYTES, tokens, kind)


def _refuse_damaged_header(path: Path, start: bytes, size: int) -> None:
    """Zeros after a count that fits the size are llm.c's header, whatever its magic has become."""
    if any(start[_HEADER_FIELDS_BYTES:]):
        return
    for order, name in (("<", "little"), (">", "big")):
        magic, _, tokens = struct.unpack_from(f"{order}3i", start.ljust(HEADER_BYTES, b"\0"))
        if tokens > 0 and size == HEADER_BYTES + tokens * NARROW.itemsize:
            raise UntrustedError(
                f"{path}: a damaged header: {name}-endian, magic {magic} and {tokens} tokens, but "
                f"little-endian and magic {MAGIC} are expected"
            )


def _refuse_wide_tokens(path: Path, start: bytes) -> None:
    """32-bit ids of a vocabulary below 65,536, read as 16-bit ones, are 0 at every second place."""
    tokens = np.frombuffer(start[: len(start) // 4 * 4], dtype="<u2")
    if len(tokens) >= _TELLING_TOKENS and tokens[::2].any() and not tokens[1::2].any():
        raise UsageError(
            f"{path}: every second 16-bit token is 0, so it seems to hold 32-bit tokens without "
            "llm.c's header; 16-bit tokens are expected"
        )


def _inspect_npy(path: Path) -> Shard:
    with _opened(path) as (file, size):
        try:
            version = np.lib.format.read_magic(file)
            read_header = {
                (1, 0): np.lib.format.read_array_header_1_0,
                (2, 0): np.lib.format.read_array_header_2_0,
            }[version]
            shape, _, dtype = read_header(file)
        # numpy parses the header as Python, and lets that parser's errors through.
        except (ValueError, KeyError, SyntaxError, tokenize.TokenError):
            raise UsageError(f"{path}: not an array that numpy.save wrote") from None
        offset = file.tell()
    if dtype != NARROW or len(shape) != 1:
        raise UsageError(
            f"{path}: an array of {dtype} with {len(shape)} dimensions, but uint16 "
            f"(little-endian) with 1 dimension is expected"
        )
    _check_size(path, size, offset=offset, tokens=shape[0])
    return Shard(path, "build-nanogpt", offset, shape[0])


def _check_size(
    path: Path, size: int, *, offset: int, tokens: int, kind: np.dtype = NARROW
) -> None:
    expected = offset + tokens * kind.itemsize
    if size == expected:
        return
    if offset == 0:
        raise UntrustedError(f"{path}: {size} bytes are no whole number of 16-bit tokens")
    raise UntrustedError(
        f"{path}: the header has {tokens} tokens, so {expected} bytes are expected, but the file "
        f"has {size}"
    )


@contextmanager
def _opened(path: Path) -> Iterator[tuple[BinaryIO, int]]:
    try:
        with open(path, "rb") as file:
            yield file, os.fstat(file.fileno()).st_size
    except OSError as error:
        raise UsageError(f"{path}: cannot be read: {error.strerror}") from None
