"""The folder of a run's checkpoints: which are complete, which is newest, what may be deleted.

A step folder is written under another name and renamed once everything in it, the manifest last, is
on the disk; so a folder under its final name is complete unless something changed it since.
"""

import hashlib
import json
import os
import re
import shutil
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from toolkit.errors import UntrustedError

STATE = "state.json"
MANIFEST = "manifest.json"
_STEP = re.compile(r"step_(\d{8,})")


@dataclass(frozen=True)
class Position:
    """Where a run is. Data order and dropout follow from the seed and `step`, so this is all."""

    step: int
    tokens: int
    seed: int
    strategy: str
    world_size: int
    model: dict[str, Any]
    optimizer: str


class CheckpointStore:
    """The checkpoints of one run, under `folder`."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def begin(self, step: int) -> Path:
        """Return an empty folder to write the checkpoint of `step` into."""
        partial = self.folder / f"step_{step:08d}.partial"
        shutil.rmtree(partial, ignore_errors=True)
        partial.mkdir(parents=True)
        return partial

    def commit(self, partial: Path, position: Position, *, keep_last: int) -> Path:
        """Make what was written under `partial` a checkpoint, then delete the oldest beyond
        `keep_last`.

        Later ones are damaged, or the run would have carried on from there; they count for nothing.
        """
        _write_json(partial / STATE, asdict(position))
        files = sorted(path for path in partial.iterdir() if path.is_file())
        manifest = {path.name: _fingerprint(path) for path in files}
        for path in files:
            _sync(path)
        _write_json(partial / MANIFEST, manifest)
        _sync(partial / MANIFEST)
        final = partial.with_suffix("")
        shutil.rmtree(final, ignore_errors=True)
        partial.rename(final)
        _sync(self.folder)
        committed = self.committed()
        for old in committed[: committed.index(final) + 1][:-keep_last]:
            shutil.rmtree(old)
        return final

    def committed(self) -> list[Path]:
        """Return the step folders that were complete once, oldest first."""
        if not self.folder.is_dir():
            return []
        found = [
            (int(match[1]), path)
            for path in self.folder.iterdir()
            if (match := _STEP.fullmatch(path.name)) and path.is_dir()
        ]
        return [path for _, path in sorted(found)]

    def newest_good(self) -> tuple[Path | None, list[str]]:
        """Return the newest checkpoint whose bytes are what was written, and a sentence for each
        newer one that was passed over.

        Raises:
            UntrustedError: there are checkpoints, but none of them is good.
        """
        problems: list[str] = []
        for path in reversed(self.committed()):
            damage = list(find_damage(path))
            if not damage:
                return path, problems
            problems += damage
        if problems:
            raise UntrustedError(
                "; ".join(problems) + "; no checkpoint here can be carried on from"
            )
        return None, []


def find_damage(checkpoint: Path) -> Iterator[str]:
    """Yield a sentence for each file that is not what the manifest says."""
    try:
        manifest = json.loads((checkpoint / MANIFEST).read_text())
        entries = {name: (entry["bytes"], entry["sha256"]) for name, entry in manifest.items()}
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        yield f"{checkpoint / MANIFEST} cannot be read"
        return
    if STATE not in entries:
        yield f"{checkpoint / MANIFEST} does not list {STATE}"
    for name, (size, digest) in entries.items():
        path = checkpoint / name
        if Path(name).name != name or not path.is_file():
            yield f"{path} is missing"
        elif (found := _fingerprint(path)) != {"bytes": size, "sha256": digest}:
            same_size = found["bytes"] == size
            what = "its SHA-256 differs" if same_size else f"{found['bytes']} bytes, not {size}"
            yield f"{path} is not what was written: {what}"


def read_position(checkpoint: Path) -> Position:
    """Return the position of a verified checkpoint."""
    return Position(**json.loads((checkpoint / STATE).read_text()))


def _fingerprint(path: Path) -> dict[str, Any]:
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(1 << 20):
            digest.update(block)
    return {"bytes": path.stat().st_size, "sha256": digest.hexdigest()}


def _write_json(path: Path, value: Any) -> None:
    path.write_text(json.dumps(value, indent=2) + "\n")


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
