"""Which documents are validated on, and which are near-duplicates of earlier ones.

A document's own hash decides, so that a text is on one side wherever it stands, and however often.
"""

import hashlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import BinaryIO, Literal

from toolkit.data.documents import BadDocumentError, document_of_line, is_json_lines
from toolkit.data.durable import sha256_of
from toolkit.data.near_duplicates import NearDuplicates
from toolkit.data.unpack import TextFile

Side = Literal["train", "val"]
Treatment = Literal["keep", "report", "remove"]


@dataclass
class Split:
    """The files of both sides, and how many documents are near-duplicates of an earlier one."""

    train: list[TextFile] = field(default_factory=list)
    val: list[TextFile] = field(default_factory=list)
    near_duplicates: int = 0


@contextmanager
def split_documents(
    files: Sequence[TextFile],
    beside: Path,
    *,
    val_fraction: float,
    field: str,
    near_duplicates: Treatment,
) -> Iterator[Split]:
    """Yield the documents of both sides; those of JSON-lines are copied, lines keep their number.

    Args:
        files: in their order.
        beside: copies lie beside this, until the end.
        val_fraction: of all documents.
        field: of a line, that is its text.
        near_duplicates: of earlier documents: keep them unseen, count them, or leave them out too.

    Raises:
        UsageError: near-duplicates are wanted and datasketch is not installed.
    """
    beside.parent.mkdir(parents=True, exist_ok=True)
    seen = None if near_duplicates == "keep" else NearDuplicates()
    with TemporaryDirectory(prefix=".split-", dir=beside.parent) as folder:
        splitter = _Splitter(Path(folder), val_fraction, field, seen, near_duplicates == "remove")
        for number, file in enumerate(files):
            splitter.add(file, number)
        yield splitter.split


class _Splitter:
    def __init__(
        self,
        folder: Path,
        val_fraction: float,
        field: str,
        seen: NearDuplicates | None,
        removes: bool,
    ) -> None:
        self.split = Split()
        self._folder = folder
        self._val_fraction = val_fraction
        self._field = field
        self._seen = seen
        self._removes = removes

    def add(self, file: TextFile, number: int) -> None:
        if is_json_lines(file.path):
            self._add_lines(file, number)
        elif not file.path.is_file():
            self.split.train.append(file)  # its survey reports what it is
        elif not self._is_left_out(lambda: file.path.read_text(errors="replace")):
            getattr(self.split, self._side(sha256_of(file.path))).append(file)

    def _add_lines(self, file: TextFile, number: int) -> None:
        sides: tuple[Side, Side] = ("train", "val")
        paths = {side: self._folder / f"{number:06d}.{side}.jsonl" for side in sides}
        used: set[Side] = set()
        with ExitStack() as opened:
            outputs = {side: opened.enter_context(path.open("wb")) for side, path in paths.items()}
            source: BinaryIO = opened.enter_context(file.path.open("rb"))
            for line in source:
                side = self._side_of_line(line)
                used |= {side} if side else set()
                for name, output in outputs.items():
                    output.write(line if name == side else b"\n")
        for side in sides:
            if side in used:
                getattr(self.split, side).append(TextFile(paths[side], file.name))

    def _side_of_line(self, line: bytes) -> Side | None:
        try:
            text = document_of_line(line, self._field)
        except BadDocumentError:
            return "train"  # the survey names it
        if text is None or self._is_left_out(lambda: text):
            return None
        return self._side(hashlib.sha256(text.encode()).hexdigest())

    def _is_left_out(self, read: Callable[[], str]) -> bool:
        if self._seen is None or not self._seen.repeats(read()):
            return False
        self.split.near_duplicates += 1
        return self._removes

    def _side(self, digest: str) -> Side:
        place = int(digest[:16], 16) / 2**64
        return "val" if place < self._val_fraction else "train"
