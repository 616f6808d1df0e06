"""The first of two readings: finds what is bad before anything is written, and cuts the work.

Only slices of whole, good documents reach the second reading, `toolkit.data.encode`.
"""

import codecs
import os
import stat
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, NamedTuple, TypeVar

from toolkit.data.cuts import last_cut, overlong_run
from toolkit.data.documents import (
    LONG_RUN,
    BadDocumentError,
    document_of_line,
    is_json_lines,
)
from toolkit.data.durable import blocks, sha256_of_rest
from toolkit.data.index import SourceEntry
from toolkit.data.unpack import TextFile
from toolkit.errors import UsageError

# Bytes of text that are encoded in one go: about 0.2 s of work.
SLICE_BYTES = 2**20
Item = TypeVar("Item")


class Slice(NamedTuple):
    """Bytes [start, stop) of a file: whole lines of JSON, or one text from cut to cut."""

    path: str
    start: int
    stop: int

    @property
    def bytes(self) -> int:
        """Length in bytes."""
        return self.stop - self.start


class SkippableError(UsageError):
    """A bad document, which `skip_bad` would skip."""


@dataclass(frozen=True)
class Survey:
    """What one file holds; `problem` is the first reason for leaving something out."""

    path: Path
    source: SourceEntry
    slices: tuple[Slice, ...]
    problem: str | None
    size_and_time: tuple[int, int] | None


def grouped(items: Iterable[Item], size: Callable[[Item], int]) -> Iterator[list[Item]]:
    """Yield neighbours together until they reach `SLICE_BYTES`, so that small files share a task.

    Args:
        items: files or slices.
        size: gives the bytes of one.
    """
    group: list[Item] = []
    total = 0
    for item in items:
        group.append(item)
        total += size(item)
        if total >= SLICE_BYTES:
            yield group
            group, total = [], 0
    if group:
        yield group


def survey_files(files: list[TextFile], *, skip_bad: bool, field: str) -> list[Survey]:
    """Survey one file after the other."""
    return [survey(*file, skip_bad=skip_bad, field=field) for file in files]


def survey(path: Path, name: str | None = None, *, skip_bad: bool, field: str = "text") -> Survey:
    """Read a file through, and return the slices of its good documents.

    Args:
        path: a text or a file of JSON-lines.
        name: what a person knows it by, where that is another.
        skip_bad: leave bad documents out and count them.
        field: of a line, that is its text.

    Raises:
        SkippableError: a document is bad and `skip_bad` is false; names file, line and byte offset.
    """
    name = str(path) if name is None else name
    found = _Findings(path, name, field, skip_bad=skip_bad)
    try:
        before = size_and_time(path)
        with open(path, "rb") as file:
            (_survey_lines if is_json_lines(path) else _survey_text)(file, found)
            file.seek(0)
            source_hash = sha256_of_rest(file)
    except OSError as error:
        found = _Findings(path, name, field, skip_bad=skip_bad)
        found.leave_out(f"{name}: cannot be read: {error.strerror}")
        before, source_hash = None, ""
    source = SourceEntry(
        path=name,
        bytes=before[0] if before else 0,
        sha256=source_hash,
        documents=found.documents,
        skipped=found.skipped,
    )
    return Survey(path, source, tuple(found.slices), found.problem, before)


def size_and_time(path: Path) -> tuple[int, int]:
    """Return what shows that a file was changed: its size and the time of its last change."""
    status = os.stat(path)
    if not stat.S_ISREG(status.st_mode):
        raise OSError(0, "not a regular file")
    return status.st_size, status.st_mtime_ns


class _Findings:
    """Collects the slices of one file and counts its documents, good and bad."""

    def __init__(self, path: Path, name: str, field: str, *, skip_bad: bool) -> None:
        self.path = path
        self.name = name
        self.field = field
        self.skip_bad = skip_bad
        self.slices: list[Slice] = []
        self.documents = 0
        self.skipped = 0
        self.problem: str | None = None

    def leave_out(self, problem: str) -> None:
        if not self.skip_bad:
            raise SkippableError(problem) from None
        self.skipped += 1
        self.problem = self.problem or problem


def _survey_text(file: BinaryIO, found: _Findings) -> None:
    try:
        found.slices = [Slice(str(found.path), *bounds) for bounds in _bounds_of_text(file)]
        found.documents = 1
    except BadDocumentError as error:
        found.leave_out(f"{found.name}, byte {error.offset}: {error}")


def _bounds_of_text(file: BinaryIO) -> Iterator[tuple[int, int]]:
    start, rest, blank = 0, "", True
    for text in _decoded(file):
        blank = blank and not text.lstrip("\ufeff").strip()
        rest += text
        run = overlong_run(rest)
        if run is not None:
            raise BadDocumentError(start + len(rest[:run].encode()), LONG_RUN)
        if len(rest) < SLICE_BYTES:
            continue
        cut = last_cut(rest) or 0
        stop = start + len(rest[:cut].encode())
        if stop > start:
            yield start, stop
        start, rest = stop, rest[cut:]
    if blank:
        raise BadDocumentError(0, "empty")
    if rest:
        yield start, start + len(rest.encode())


def _decoded(file: BinaryIO) -> Iterator[str]:
    decoder = codecs.getincrementaldecoder("utf-8")()
    offset = 0
    for block in blocks(file, SLICE_BYTES):
        text = _decode(decoder, block, offset, final=False)
        if b"\0" in block:
            raise BadDocumentError(offset + block.index(b"\0"), "binary, it holds NUL")
        yield text
        offset += len(block)
    yield _decode(decoder, b"", offset, final=True)


def _decode(decoder: codecs.IncrementalDecoder, block: bytes, offset: int, *, final: bool) -> str:
    # The decoder keeps the bytes of a character that the last block ended within.
    kept = len(decoder.getstate()[0])
    try:
        return decoder.decode(block, final)
    except UnicodeDecodeError as error:
        raise BadDocumentError(offset - kept + error.start, "not UTF-8") from None


def _survey_lines(file: BinaryIO, found: _Findings) -> None:
    begin = offset = 0
    for number, line in enumerate(file, 1):
        try:
            found.documents += document_of_line(line, found.field) is not None
        except BadDocumentError as error:
            place = f"line {number}, byte {offset + error.offset}"
            found.leave_out(f"{found.name}, {place}: {error}")
            _add_slice(found, begin, offset)
            begin = offset + len(line)
        offset += len(line)
        if offset - begin >= SLICE_BYTES:
            _add_slice(found, begin, offset)
            begin = offset
    _add_slice(found, begin, offset)
    if not found.documents and not found.skipped:
        found.leave_out(f"{found.name}, byte 0: empty")


def _add_slice(found: _Findings, start: int, stop: int) -> None:
    if stop > start:
        found.slices.append(Slice(str(found.path), start, stop))
