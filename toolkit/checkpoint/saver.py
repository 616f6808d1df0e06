"""Saving from every rank at once, with training held up or continuing meanwhile."""

import os
import shutil
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from threading import Thread

from toolkit.checkpoint.host_copy import HostCopy
from toolkit.checkpoint.state import own_pieces, part_name
from toolkit.checkpoint.store import CheckpointStore
from toolkit.checkpoint.tensors import Entry, Fingerprint, write_tensors
from toolkit.checkpoint.training_state import TrainingState
from toolkit.engines.engine import Engine
from toolkit.errors import SaveError

_NICE = 10


class Saver:
    """Writes the checkpoints of a run; all of its methods are collectives.

    Each rank writes its own share. When all are on the disk, rank 0 writes the manifest and gives
    the folder its name; so a checkpoint is complete for everyone or for no one.

    Args:
        engine: whose state is saved.
        store: where to; used on rank 0 to begin and commit.
        keep_last: checkpoints to keep.
        asynchronous: copy the state and write it in a thread, until `finish`.
        with_moments: whether copies will hold AdamW's moments.
    """

    def __init__(
        self,
        engine: Engine,
        store: CheckpointStore,
        *,
        keep_last: int,
        asynchronous: bool,
        with_moments: bool = True,
    ) -> None:
        self.engine = engine
        self.store = store
        self.keep_last = keep_last
        self._state: TrainingState | None = None
        self._writing: _Write | None = None
        self._clearing: Thread | None = None
        self._copy: HostCopy | None = None
        if asynchronous:
            self._copy = HostCopy(own_pieces(engine, with_moments=with_moments), engine.device)

    @property
    def asynchronous(self) -> bool:
        """Whether training continues while a checkpoint is written."""
        return self._copy is not None

    @property
    def is_writing(self) -> bool:
        """Whether this rank is still writing what `begin` left to be written."""
        return self._writing is not None and self._writing.is_alive()

    def begin(self, state: TrainingState) -> None:
        """Write this rank's share, or copy it and let a thread write it; then comes `finish`.

        Raises:
            SaveError: on every rank, if rank 0 cannot make the folder or the disk is too full.
        """
        self.close()
        pieces = own_pieces(self.engine, with_moments=state.moments)
        total = sum(self.engine.ranks.gather(sum(piece.bytes for piece in pieces)))
        self._on_rank_0(lambda: self._begin(state.step, total))
        path = self.store.partial(state.step) / part_name(self.engine.rank)
        self._state = state
        if self._copy is not None:
            self._writing = _Write(path, self._copy.take(pieces))
            self._writing.start()
        else:
            self._writing = _Write(path, pieces)
            self._writing.write()

    def finish(self) -> Path | None:
        """Wait until what was begun is complete; return the checkpoint, or None if nothing was.

        Raises:
            SaveError: on every rank, whichever of them had the problem.
        """
        if self._writing is None or self._state is None:
            return None
        writing, state = self._writing, self._state
        if self.asynchronous:
            writing.join()
        self._writing = None
        found = self.engine.ranks.gather(writing.result)
        problems = [part for part in found if isinstance(part, str)]
        if problems:
            self._on_rank_0(lambda: self.store.abandon(state.step))
            raise SaveError("; ".join(problems))
        parts = {part_name(rank): part for rank, part in enumerate(found)}
        self._on_rank_0(lambda: self._commit(state, parts))
        return self.store.partial(state.step).with_suffix("")

    def close(self) -> None:
        """Wait until what no longer counts is deleted."""
        if self._clearing is not None:
            self._clearing.join()
            self._clearing = None

    def _commit(self, state: TrainingState, parts: Mapping[str, Fingerprint]) -> None:
        self.store.commit(state.step, state.to_json(), parts, keep_last=self.keep_last)
        self._clearing = Thread(target=self.store.clear, name="clear", daemon=True)
        self._clearing.start()
        if not self.asynchronous:
            self.close()

    def _begin(self, step: int, total: int) -> None:
        self.store.begin(step)
        free = shutil.disk_usage(self.store.folder).free
        if free < total:
            self.store.abandon(step)
            raise SaveError(
                f"{self.store.folder}: the checkpoint of step {step} needs {total:,} bytes, "
                f"but {free:,} are free"
            )

    def _on_rank_0(self, act: Callable[[], object]) -> None:
        """Let rank 0 act; raise on every rank what went wrong there."""
        problem = None
        if self.engine.rank == 0:
            try:
                act()
            except SaveError as error:
                problem = str(error)
            except OSError as error:
                problem = _sentence(self.store.folder, error)
        if problem := self.engine.ranks.gather(problem)[0]:
            raise SaveError(problem)


class _Write(Thread):
    """Writes one part; `result` is its fingerprint, or a sentence saying what went wrong."""

    def __init__(self, path: Path, pieces: Sequence[Entry]) -> None:
        super().__init__(name="checkpoint", daemon=True)
        self.path = path
        self.pieces = pieces
        self.result: Fingerprint | str = f"{path}: was not written"

    def run(self) -> None:
        """Write behind the training, which comes first on the processor."""
        if sys.platform == "linux":  # where each thread has a priority of its own
            os.nice(_NICE)
        self.write()

    def write(self) -> None:
        try:
            self.result = write_tensors(self.path, self.pieces)
        except OSError as error:
            self.result = _sentence(self.path, error)


def _sentence(path: Path, error: OSError) -> str:
    return f"{error.filename or path}: cannot be written: {error.strerror}"
