"""Input that cannot be cut into slices, made into files that can: text, or JSON-lines.

Compressed files are unpacked, and tables become a line of JSON for each row, so that row and line
have the same number. It takes the room of the text on the disk, and memory for one row.
"""

import csv
import gzip
import json
import shutil
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, BinaryIO, NamedTuple, cast

from toolkit.data.documents import find_text_files
from toolkit.data.formats import compression_of, is_read_in_place, kind_of
from toolkit.data.huggingface import dataset_rows, is_dataset
from toolkit.errors import UsageError

STDIN = "-"
# Documents are longer than what the csv module takes for a field by default.
_MAX_FIELD = 2**31 - 1
_PARQUET_ROWS = 1024


class TextFile(NamedTuple):
    """A text or a file of JSON-lines, and the name by which a person knows it."""

    path: Path
    name: str


@contextmanager
def unpacked(
    inputs: Sequence[str | Path], beside: Path, *, field: str, extensions: Sequence[str] = ()
) -> Iterator[tuple[list[TextFile], int]]:
    """Yield the files that inputs stand for, in their order, and how many others were ignored.

    Args:
        inputs: files, folders, patterns, `-` for standard input, a folder that `datasets` saved,
            or `hf:NAME[@CONFIGURATION][:SPLIT]`.
        beside: what is unpacked lies beside this, until the end.
        field: of a row, that is its text.
        extensions: endings of further files that are one text each.

    Raises:
        UsageError: an input is none of these, or cannot be read.
    """
    files: list[TextFile] = []
    ignored = 0
    with _Spool(beside, field) as spool:
        for kind, group in _grouped([str(name) for name in inputs]):
            if kind == "file":
                found, others = find_text_files(group, extensions)
                files += [spool.unpack(path, extensions) for path in found]
                ignored += others
            else:
                files += [spool.unpack_stream(name) for name in group]
        _refuse_nothing(files)
        yield files, ignored


def _grouped(names: Iterable[str]) -> Iterator[tuple[str, list[str]]]:
    """Neighbouring files together, so that one that is named twice is noticed."""
    files: list[str] = []
    for name in names:
        if name == STDIN or is_dataset(name):
            if files:
                yield "file", files
            files = []
            yield "stream", [name]
        else:
            files.append(name)
    if files:
        yield "file", files


def _refuse_nothing(files: list[TextFile]) -> None:
    if not files:
        find_text_files([])


class _Spool:
    """A folder of unpacked files that is made when the first is, and removed at the end."""

    def __init__(self, beside: Path, field: str) -> None:
        self._beside = beside
        self._field = field
        self._folder: TemporaryDirectory[str] | None = None
        self._count = 0

    def __enter__(self) -> "_Spool":
        return self

    def __exit__(self, *_: object) -> None:
        if self._folder is not None:
            self._folder.cleanup()

    def unpack(self, path: Path, extensions: Sequence[str]) -> TextFile:
        if is_read_in_place(path, extensions) or not path.is_file():
            return TextFile(path, str(path))
        kind = kind_of(path, extensions)
        try:
            if kind in ("text", "lines"):
                target = self._next(".txt" if kind == "text" else ".jsonl")
                with opened(path) as source, target.open("wb") as output:
                    shutil.copyfileobj(source, output, 2**20)
                return TextFile(target, str(path))
            rows = _csv_rows(path) if kind == "csv" else _parquet_rows(path, self._field)
            return self._write_rows(rows, str(path))
        except (OSError, EOFError, ValueError, csv.Error) as error:
            raise UsageError(f"{path}: cannot be read: {error}") from None

    def unpack_stream(self, name: str) -> TextFile:
        if name != STDIN:
            return self._write_rows(dataset_rows(name), name)
        source = sys.stdin.buffer
        first = source.peek(1) if hasattr(source, "peek") else b""
        target = self._next(".jsonl" if first.startswith(b"{") else ".txt")
        with target.open("wb") as output:
            shutil.copyfileobj(source, output, 2**20)
        return TextFile(target, "standard input")

    def _write_rows(self, rows: Iterable[dict[str, Any]], name: str) -> TextFile:
        target = self._next(".jsonl")
        with target.open("w", encoding="utf-8", errors="surrogatepass") as output:
            for number, row in enumerate(rows, 1):
                if number == 1 and self._field not in row:
                    fields = ", ".join(map(str, row))
                    raise UsageError(f"{name}: has no field '{self._field}'; it has {fields}")
                output.write(json.dumps({self._field: row.get(self._field)}) + "\n")
        return TextFile(target, name)

    def _next(self, suffix: str) -> Path:
        if self._folder is None:
            self._beside.parent.mkdir(parents=True, exist_ok=True)
            self._folder = TemporaryDirectory(prefix=".unpacked-", dir=self._beside.parent)
        self._count += 1
        return Path(self._folder.name) / f"{self._count:06d}{suffix}"


@contextmanager
def opened(path: Path) -> Iterator[BinaryIO]:
    """Open a file for reading what it holds, unpacked.

    Raises:
        UsageError: the package that unpacks it is not installed.
        OSError: it cannot be read.
    """
    compression = compression_of(path)
    if compression is None:
        with path.open("rb") as file:
            yield file
    elif compression == ".gz":
        with gzip.open(path) as unzipped:
            yield cast(BinaryIO, unzipped)
    else:
        try:
            import zstandard
        except ImportError:
            raise UsageError(f"{path}: needs zstandard; `pip install zstandard`") from None
        with path.open("rb") as file:
            reader = zstandard.ZstdDecompressor().stream_reader(file, read_across_frames=True)
            try:
                yield cast(BinaryIO, reader)
            except zstandard.ZstdError as error:
                raise OSError(f"not zstd: {error}") from None


def _csv_rows(path: Path) -> Iterator[dict[str, Any]]:
    import io

    csv.field_size_limit(_MAX_FIELD)
    with opened(path) as file:
        yield from csv.DictReader(io.TextIOWrapper(file, encoding="utf-8-sig", newline=""))


def _parquet_rows(path: Path, field: str) -> Iterator[dict[str, Any]]:
    try:
        import pyarrow.parquet as parquet
    except ImportError:
        raise UsageError(f"{path}: needs pyarrow; `pip install pyarrow`") from None
    with parquet.ParquetFile(path) as file:
        names = file.schema_arrow.names
        if field not in names:
            raise UsageError(f"{path}: has no field '{field}'; it has {', '.join(names)}")
        for batch in file.iter_batches(batch_size=_PARQUET_ROWS, columns=[field]):
            yield from batch.to_pylist()
