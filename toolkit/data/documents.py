"""The text files among what a person names, and the documents in them.

A `.txt`, `.md` or `.markdown` file is one document: UTF-8, where a byte-order mark is dropped and
CRLF becomes LF, as Python reads text. Each line of a `.jsonl` file that is not blank is one
document: a JSON object with a field, `text` unless another is named, that is taken as it is.
"""

import glob
import json
import os
import sys
from collections.abc import Collection, Iterable, Iterator
from pathlib import Path
from typing import Any

from toolkit.data.cuts import MAX_RUN, overlong_run
from toolkit.data.formats import EXPECTED, kind_of
from toolkit.errors import UsageError

_JSON_LINES_SUFFIX = ".jsonl"

LONG_RUN = f"more than {MAX_RUN:,} characters without a boundary between words are no text"


class BadDocumentError(Exception):
    """Why a document is no text; `offset` is in bytes from where reading it began."""

    def __init__(self, offset: int, reason: str) -> None:
        super().__init__(reason)
        self.offset = offset


def find_text_files(
    inputs: Iterable[str | Path], extensions: Collection[str] = ()
) -> tuple[list[Path], int]:
    """Return the text files that `inputs` name, and how many other files were ignored.

    Folders are searched to the bottom, in the order of the names, linked ones as well, each once;
    hidden files and folders are skipped uncounted. A name that is not there may be a pattern.

    Args:
        inputs: files, folders and patterns.
        extensions: endings of further files that are text, such as `.py`.

    Raises:
        UsageError: an input doesn't exist or is of another kind, a folder cannot be read or holds
            no text, or a file is named twice, be it through a link.
    """
    found: dict[str, Path] = {}
    ignored = 0
    for path in _matched(inputs):
        files, others = (
            _in_folder(path, extensions) if path.is_dir() else ([_named(path, extensions)], 0)
        )
        ignored += others
        for file in files:
            first = found.setdefault(os.path.realpath(file), file)
            if first is not file:
                twice = "named twice" if first == file else f"the same file as {first}"
                raise UsageError(f"{file}: {twice}, so it would be learned twice")
    if not found:
        raise UsageError("no input is named; give files or folders of .txt, .md or .jsonl")
    return list(found.values()), ignored


def is_json_lines(path: str | Path) -> bool:
    """Whether each line of a file is a document."""
    return str(path).lower().endswith(_JSON_LINES_SUFFIX)


def document_of_line(line: bytes, field: str = "text") -> str | None:
    """Return the document that one line of a `.jsonl` file holds, or None if it is blank.

    Raises:
        BadDocumentError: the line is no JSON object with a `field` of proper Unicode in it.
    """
    try:
        decoded = line.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise BadDocumentError(error.start, "not UTF-8") from None
    if not decoded.strip():
        return None
    fields = _parse(decoded)
    if not isinstance(fields, dict) or field not in fields:
        raise BadDocumentError(0, f"not a JSON object with the field '{field}'")
    text = fields[field]
    if not isinstance(text, str):
        raise BadDocumentError(0, f"the field '{field}' is {_kind(text)}, not a string")
    _check_json_text(text, field)
    return text


def _parse(line: str) -> Any:
    try:
        return json.loads(line)
    except json.JSONDecodeError as error:
        place = len(line[: error.pos].encode())
        raise BadDocumentError(place, f"not JSON: {error.msg}") from None
    except RecursionError:
        raise BadDocumentError(0, "nested too deeply") from None
    except ValueError:
        # Python converts no more digits at once, for that takes quadratic time.
        most = sys.get_int_max_str_digits()
        raise BadDocumentError(0, f"holds a number of more than {most:,} digits") from None


def _kind(value: Any) -> str:
    """JSON's own word for a value that is no string."""
    if value is None or isinstance(value, bool):
        return json.dumps(value)
    if isinstance(value, int | float):
        return "a number"
    return "a list" if isinstance(value, list) else "an object"


def _check_json_text(text: str, field: str) -> None:
    if not text.strip():
        raise BadDocumentError(0, f"the field '{field}' is empty")
    if "\0" in text:
        raise BadDocumentError(0, f"the field '{field}' is binary, it holds NUL")
    try:
        text.encode()
    except UnicodeEncodeError:
        raise BadDocumentError(0, f"the field '{field}' holds half of a surrogate pair") from None
    if overlong_run(text) is not None:
        raise BadDocumentError(0, f"the field '{field}': {LONG_RUN}")


def _matched(inputs: Iterable[str | Path]) -> Iterator[Path]:
    for name in inputs:
        path = Path(name)
        matches = [] if os.path.lexists(path) else sorted(glob.glob(str(name), recursive=True))
        yield from [Path(match) for match in matches] or [path]


def _named(path: Path, extensions: Collection[str]) -> Path:
    if not os.path.lexists(path):
        raise UsageError(f"{path}: no such file or folder")
    if kind_of(path, extensions) is None:
        raise UsageError(
            f"{path}: not text by its name; {EXPECTED} is expected, and --ext names others"
        )
    return path


def _in_folder(folder: Path, extensions: Collection[str]) -> tuple[list[Path], int]:
    files: list[Path] = []
    ignored = 0
    searched: set[str] = set()
    for parent, folders, names in os.walk(folder, onerror=_refuse_folder, followlinks=True):
        # A link may lead to a folder around it, or to one that is searched in its own place.
        if (real := os.path.realpath(parent)) in searched:
            folders.clear()
            continue
        searched.add(real)
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        paths = [Path(parent, name) for name in names if not name.startswith(".")]
        # A link to nothing may be a folder that is not mounted; its survey reports what it is.
        texts = [path for path in paths if kind_of(path, extensions) or not os.path.exists(path)]
        files += texts
        ignored += len(paths) - len(texts)
    if not files:
        raise UsageError(f"{folder}: holds no text ({EXPECTED})")
    return sorted(files), ignored


def _refuse_folder(error: OSError) -> None:
    raise UsageError(f"{error.filename}: cannot be read: {error.strerror}") from None
