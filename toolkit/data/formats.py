"""What a file holds, by its name: one text, or a table of documents; compressed or not."""

from collections.abc import Collection
from pathlib import Path
from typing import Literal

Kind = Literal["text", "lines", "csv", "parquet"]

_KINDS: dict[str, Kind] = {
    ".txt": "text",
    ".md": "text",
    ".markdown": "text",
    ".jsonl": "lines",
    ".csv": "csv",
    ".parquet": "parquet",
}
COMPRESSIONS = (".gz", ".zst")
EXPECTED = ".txt, .md, .markdown, .jsonl, .csv, .parquet, or those with .gz or .zst"


def kind_of(path: str | Path, extensions: Collection[str] = ()) -> Kind | None:
    """Return what a file holds, or None where its name does not show.

    Args:
        path: its name, of which the case does not matter.
        extensions: endings of further files that are one text each, such as `.py`.
    """
    name = without_compression(Path(path).name.lower())
    if any(name.endswith(ending.lower()) for ending in extensions):
        return "text"
    return _KINDS.get(Path(name).suffix)


def without_compression(name: str) -> str:
    """Return a name without the ending that names how the file is compressed."""
    path = Path(name)
    return path.stem if path.suffix in COMPRESSIONS else name


def compression_of(path: Path) -> str | None:
    """Return `.gz` or `.zst`, or None for a file that is not compressed."""
    suffix = path.suffix.lower()
    return suffix if suffix in COMPRESSIONS else None


def is_read_in_place(path: Path, extensions: Collection[str] = ()) -> bool:
    """Whether a file is cut into slices and read as it is; every other one is unpacked first."""
    return compression_of(path) is None and kind_of(path, extensions) in ("text", "lines")
