"""Copies of the state in the memory of two machines each, for the loss of one between checkpoints.

A copy is kept as files in /dev/shm, which is memory that outlives a process: a rank's own part and
that of the rank at its place on the machine before. What is found there at the next start is first
made a checkpoint like any other, so there is one way to load, with all its checks. Wang et al.
2023 (Gemini, SOSP, section 4) place copies likewise.
"""

import json
import os
import shutil
from collections.abc import Callable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any, TypeVar

import torch
import torch.distributed as dist

from toolkit.checkpoint.copies import folder_of, hold, release, token_of
from toolkit.checkpoint.state import own_pieces, part_name
from toolkit.checkpoint.store import CheckpointStore, step_name, step_of
from toolkit.checkpoint.tensors import Fingerprint, write_tensors
from toolkit.checkpoint.training_state import TrainingState
from toolkit.engines.engine import Engine
from toolkit.errors import SaveError

_DESCRIPTION = "copy.json"
_PIECE_BYTES = 2**24
T = TypeVar("T")


class PeerCopy:
    """This rank's share of the copies of a run; all methods are collectives.

    Memory is bounded by four parts a rank: its own and its neighbour's, of the last copy and of the
    one that is being made.

    Args:
        engine: whose state is copied.
        run_folder: of the run; copies belong to it, not to another of its name.
    """

    def __init__(self, engine: Engine, run_folder: Path) -> None:
        self.engine = engine
        self.per_machine = int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
        token = engine.ranks.gather(token_of(run_folder) if engine.rank == 0 else "")[0]
        place = f"{os.uname().nodename}-{engine.launched.local_rank}"
        self.folder = folder_of(token) / place
        self.run_folder = run_folder
        self._is_held = False

    @property
    def held_bytes(self) -> int:
        """Memory that this rank's copies take."""
        return sum(path.stat().st_size for path in self.folder.rglob("*") if path.is_file())

    def take(self, state: TrainingState) -> None:
        """Copy the state; the copy before it goes once the new one is complete everywhere.

        Raises:
            SaveError: on every rank, if there is too little memory on one.
        """
        rank, final = self.engine.rank, self.folder / step_name(state.step)
        unfinished = final.with_suffix(".partial")
        own = unfinished / part_name(rank)
        other = unfinished / part_name((rank - self.per_machine) % self.engine.world_size)

        def write_own() -> Fingerprint:
            shutil.rmtree(unfinished, ignore_errors=True)
            unfinished.mkdir(parents=True)
            if not self._is_held:
                hold(self.folder.parent, self.run_folder)
                self._is_held = True
            return write_tensors(own, own_pieces(self.engine, with_moments=state.moments))

        parts = {part_name(r): part for r, part in enumerate(self._on_all(write_own))}
        if other != own:
            self._on_all(lambda: _reserve(other, parts[other.name].bytes))
            self._exchange(own, other, max(part.bytes for part in parts.values()))
        listed = {name: asdict(part) for name, part in parts.items()}
        description = json.dumps({"state": state.to_json(), "parts": listed})
        self._on_all(lambda: (unfinished / _DESCRIPTION).write_text(description))
        # One of this step is there where the run has gone back since.
        shutil.rmtree(final, ignore_errors=True)
        unfinished.rename(final)
        self.engine.ranks.gather(None)
        for path in self.folder.iterdir():
            if path != final:
                shutil.rmtree(path, ignore_errors=True)

    def _exchange(self, own_part: Path, other_part: Path, most: int) -> None:
        """Send the own part to the next machine, and fill in that of the machine before."""
        rank, world_size = self.engine.rank, self.engine.world_size
        to, source = ((rank + by) % world_size for by in (self.per_machine, -self.per_machine))
        left = other_part.stat().st_size
        with own_part.open("rb") as own, other_part.open("r+b") as other:
            for _ in range(0, most, _PIECE_BYTES):
                # A part that is shorter than others is followed by nothing, sent as one byte.
                block = bytearray(own.read(_PIECE_BYTES) or b"\0")
                sent = torch.frombuffer(block, dtype=torch.uint8).to(self.engine.device)
                size = min(left, _PIECE_BYTES)
                received = sent.new_empty(max(size, 1))
                both = [(dist.isend, sent, to), (dist.irecv, received, source)]
                for request in dist.batch_isend_irecv([dist.P2POp(*each) for each in both]):
                    request.wait()
                other.write(received[:size].cpu().numpy().data)
                left -= size

    def save(self, store: CheckpointStore, *, keep_last: int) -> int | None:
        """Make a checkpoint of the newest whole copy, if it is newer than all; return its step.

        Raises:
            SaveError: on every rank, if it cannot be written.
        """
        newest = max(map(step_of, store.committed()), default=0)
        held = self._held()
        found = self.engine.ranks.gather((newest, {step: [*parts] for step, parts in held.items()}))
        newest, _ = found[0]
        holders: dict[int, dict[str, int]] = {}
        for rank, (_, copies) in enumerate(found):
            for step, names in copies.items():
                holders.setdefault(step, {}).update(dict.fromkeys(names, rank))
        for step in sorted((step for step in holders if step > newest), reverse=True):
            own = held.get(step, {}).get(_DESCRIPTION)
            text = self.engine.ranks.gather(own.read_text() if own else None)
            description = json.loads(next(filter(None, text)))
            if description["parts"].keys() <= holders[step].keys():
                self._write(store, step, description, holders[step], keep_last)
                return step
        return None

    def close(self) -> None:
        """Give the memory back; the state is on the disk."""
        shutil.rmtree(self.folder, ignore_errors=True)
        release(self.folder.parent, self.run_folder)

    def _held(self) -> dict[int, dict[str, Path]]:
        """Return the files of each whole copy of this rank, by step and name."""
        folders = [p for p in self.folder.glob("step_*") if not p.suffix]
        return {step_of(folder): {p.name: p for p in folder.iterdir()} for folder in folders}

    def _write(
        self,
        store: CheckpointStore,
        step: int,
        description: dict[str, Any],
        holders: Mapping[str, int],
        keep_last: int,
    ) -> None:
        rank = self.engine.rank
        parts = {name: Fingerprint(**part) for name, part in description["parts"].items()}
        own = [name for name in parts if holders[name] == rank]

        def begin() -> None:
            if rank == 0:
                store.begin(step)

        def copy_own() -> None:
            for name in own:
                _copy(self.folder / step_name(step) / name, store.partial(step))

        def commit() -> None:
            if rank == 0:
                store.commit(step, description["state"], parts, keep_last=keep_last)

        for act in (begin, copy_own, commit):
            self._on_all(act)

    def _on_all(self, act: Callable[[], T]) -> list[T]:
        """Let every rank act and return all results; raise on each what went wrong on any."""
        result: Any = None
        problem = None
        try:
            result = act()
        except OSError as error:
            problem = f"{error.filename or self.folder}: cannot be written: {error.strerror}"
        found = self.engine.ranks.gather((result, problem))
        if problems := [problem for _, problem in found if problem]:
            raise SaveError("; ".join(problems))
        return [result for result, _ in found]


def _reserve(file: Path, size: int) -> None:
    """Take the memory now, where running out of it is a sentence."""
    with file.open("wb") as opened:
        os.posix_fallocate(opened.fileno(), 0, size)


def _copy(file: Path, folder: Path) -> None:
    shutil.copyfile(file, folder / file.name)
    with (folder / file.name).open("rb") as written:
        os.fsync(written.fileno())
