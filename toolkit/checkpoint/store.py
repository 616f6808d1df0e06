"""The folder of a run's checkpoints: which are complete, which is newest, what may be deleted.

A step folder is written under another name and renamed once everything in it, the manifest last, is
on the disk; so a folder under its final name is complete unless something changed it since. It is
deleted the same way round: it loses its name first.
"""

import hashlib
import json
import os
import re
import shutil
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from toolkit.checkpoint.tensors import Fingerprint
from toolkit.checkpoint.training_state import STATE
from toolkit.data.durable import sha256_of, write_durably
from toolkit.errors import UntrustedError

MANIFEST = "manifest.json"
_FORMAT = "scaling-toolkit checkpoint"
_STEP = re.compile(r"step_(\d{8,})")
_FILE = re.compile(rf"{re.escape(STATE)}|rank_\d{{5}}\.safetensors")
_UNFINISHED = (".partial", ".deleted")


def step_name(step: int) -> str:
    """Return the name of the folder with the checkpoint of a step."""
    return f"step_{step:08d}"


def step_of(checkpoint: Path) -> int:
    """Return the completed steps that a folder so named is the checkpoint of."""
    return int(checkpoint.name.removeprefix("step_"))


class CheckpointStore:
    """The checkpoints of one run, under `folder`."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def partial(self, step: int) -> Path:
        """Return where the checkpoint of `step` is written."""
        return self.folder / f"{step_name(step)}.partial"

    def begin(self, step: int) -> None:
        """Make an empty folder for `step`, and clear away what crashes left."""
        self.folder.mkdir(parents=True, exist_ok=True)
        self.clear()
        self.partial(step).mkdir()

    def clear(self) -> None:
        """Give back the space of what is no checkpoint: begun and not complete, or given up."""
        for path in self.folder.iterdir():
            if path.suffix in _UNFINISHED and _STEP.fullmatch(path.stem):
                shutil.rmtree(path, ignore_errors=True)

    def abandon(self, step: int) -> None:
        """Give back the space of a checkpoint that could not be written."""
        shutil.rmtree(self.partial(step), ignore_errors=True)

    def commit(
        self, step: int, state: str, parts: Mapping[str, Fingerprint], *, keep_last: int
    ) -> Path:
        """Make what was written for `step` a checkpoint and give up the oldest beyond `keep_last`.

        They are no checkpoints from then on; `clear` deletes them, which may take a while.
        Later ones are damaged, or the run would have resumed from there; they count for nothing.

        Args:
            step: as given to `begin`.
            state: the text of `state.json`.
            parts: the files of the ranks, which are on the disk already.
            keep_last: checkpoints to keep, this one included.
        """
        partial = self.partial(step)
        text = state.encode()
        write_durably(partial / STATE, text)
        own = {STATE: Fingerprint(len(text), hashlib.sha256(text).hexdigest())}
        write_durably(partial / MANIFEST, _manifest_text(step, {**own, **parts}))
        final = partial.with_suffix("")
        if final.exists():
            _give_up(final)
        partial.rename(final)
        _sync(self.folder)
        committed = self.committed()
        for old in committed[: committed.index(final) + 1][:-keep_last]:
            _give_up(old)
        return final

    def committed(self) -> list[Path]:
        """Return the step folders that were complete once, oldest first.

        Raises:
            UntrustedError: one of them is a link, so that it may lead anywhere.
        """
        if not self.folder.is_dir():
            return []
        _refuse_link(self.folder)
        found = [
            (int(match[1]), path)
            for path in self.folder.iterdir()
            if (match := _STEP.fullmatch(path.name)) and path.is_dir()
        ]
        for _, path in found:
            _refuse_link(path)
        return [path for _, path in sorted(found)]

    def newest_good(
        self,
        *,
        rank: int = 0,
        world_size: int = 1,
        gather: Callable[[Any], list[Any]] = lambda value: [value],
    ) -> tuple[Path | None, list[str]]:
        """Return the newest checkpoint whose bytes are what was written, and a sentence for each
        newer one that was skipped.

        Args:
            rank: this process among those that share the work of reading.
            world_size: their number.
            gather: returns every process's value to each of them.

        Raises:
            UntrustedError: there are checkpoints, but none of them is good.
        """
        problems: list[str] = []
        for path in reversed(gather(self.committed())[0]):
            shares = gather(list(find_damage(path, rank=rank, world_size=world_size)))
            damage = list(dict.fromkeys(problem for share in shares for problem in share))
            if not damage:
                return path, problems
            problems += damage
        if problems:
            raise UntrustedError("; ".join(problems) + "; no checkpoint here can be resumed from")
        return None, []


def find_damage(checkpoint: Path, *, rank: int = 0, world_size: int = 1) -> Iterator[str]:
    """Yield a sentence for everything that is not as in the manifest, or for the manifest itself.

    Bytes are read of every `world_size`-th file, from number `rank` on.
    """
    try:
        files = read_manifest(checkpoint)
    except UntrustedError as error:
        yield str(error)
    else:
        yield from damaged_files(checkpoint, files, rank=rank, world_size=world_size)


def damaged_files(
    checkpoint: Path,
    files: Mapping[str, Fingerprint],
    *,
    rank: int | None = 0,
    world_size: int = 1,
) -> Iterator[str]:
    """Yield a sentence for every file that is not as in its manifest; bytes are read of every
    `world_size`-th, from number `rank` on, or of none if `rank` is None."""
    for path in sorted(checkpoint.iterdir()):
        if path.name not in files and path.name != MANIFEST:
            yield f"{path} is not listed in the manifest"
    for number, (name, written) in enumerate(sorted(files.items())):
        path = checkpoint / name
        if path.is_symlink() or not path.is_file():
            yield f"{path} is missing"
        elif (size := path.stat().st_size) != written.bytes:
            yield f"{path} is not what was written: {size} bytes, not {written.bytes}"
        elif number % world_size == rank and sha256_of(path) != written.sha256:
            yield f"{path} is not what was written: its SHA-256 differs"


def read_manifest(checkpoint: Path) -> dict[str, Fingerprint]:
    """Return the files of a checkpoint, each a plain name with its fingerprint.

    Raises:
        UntrustedError: the manifest is missing, or not as it was written.
    """
    path = checkpoint / MANIFEST
    try:
        text = path.read_bytes()
        fields = json.loads(text)
        files = {name: Fingerprint(**entry) for name, entry in fields["files"].items()}
        step = int(fields["step"])
        same = text == _manifest_text(step, files)
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
        raise UntrustedError(f"{path} cannot be read") from None
    if not same:
        raise UntrustedError(f"{path} is not what was written")
    if checkpoint.name != step_name(step):
        raise UntrustedError(f"{checkpoint} holds the checkpoint of step {step}")
    for name in files:
        if not _FILE.fullmatch(name):
            raise UntrustedError(f"{path} lists {name!r}, which is no file of a checkpoint")
    if STATE not in files:
        raise UntrustedError(f"{path} does not list {STATE}")
    return files


def _manifest_text(step: int, files: Mapping[str, Fingerprint]) -> bytes:
    """The one way a manifest is written; it ends with the SHA-256 of itself without that line."""
    listed = {name: asdict(files[name]) for name in sorted(files)}
    fields = {"format": _FORMAT, "step": step, "files": listed}
    digest = hashlib.sha256(json.dumps(fields).encode()).hexdigest()
    return (json.dumps({**fields, "sha256": digest}, indent=1) + "\n").encode()


def _give_up(checkpoint: Path) -> None:
    """A half-deleted folder must not look like a checkpoint."""
    checkpoint.rename(checkpoint.with_suffix(".deleted"))


def _refuse_link(folder: Path) -> None:
    if folder.is_symlink():
        raise UntrustedError(f"{folder} is a link to another folder; put the folder itself there")


def _sync(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
