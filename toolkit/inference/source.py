"""Where trained weights are: a run, its configuration, one checkpoint, or a folder of GPT-2's."""

from dataclasses import dataclass
from pathlib import Path

from toolkit.checkpoint.store import MANIFEST, CheckpointStore, find_damage
from toolkit.errors import UntrustedError, UsageError
from toolkit.runs.record import find_run


@dataclass(frozen=True)
class Source:
    """A folder that holds weights.

    Attributes:
        folder: a verified checkpoint, or a folder in transformers' layout.
        run: the run folder that the checkpoint is in; None in transformers' layout.
        step: completed updates of the checkpoint; None in transformers' layout.
    """

    folder: Path
    run: Path | None
    step: int | None

    @property
    def name(self) -> str:
        """What a person calls it."""
        return str(self.folder if self.run is None else self.run)


def find_source(path: Path, *, step: int | None = None) -> Source:
    """Return the weights that a path names: the newest good checkpoint, or that of `step`.

    Raises:
        UsageError: the path is nothing of the kind, or there is no such step.
        UntrustedError: the checkpoint is damaged.
    """
    if path.is_dir() and (path / "config.json").is_file():
        if step is not None:
            raise UsageError(f"{path} is an exported model, which has no step {step}")
        return Source(path, None, None)
    if (path / MANIFEST).is_file():
        return _checkpoint(path, step)
    run = find_run(path)
    store = CheckpointStore(run / "checkpoints")
    if step is None:
        newest, _ = store.newest_good()
        if newest is None:
            raise UsageError(f"{run} holds no checkpoint")
        return Source(newest, run, step_of(newest))
    checkpoint = store.folder / f"step_{step:08d}"
    if checkpoint not in store.committed():
        steps = ", ".join(str(step_of(found)) for found in store.committed()) or "none"
        raise UsageError(f"{run} has no checkpoint of step {step}; there are {steps}")
    return _checkpoint(checkpoint, None)


def find_all(path: Path) -> list[Source]:
    """Return every checkpoint of a run, oldest first; raises as `find_source`."""
    run = find_run(path)
    checkpoints = CheckpointStore(run / "checkpoints").committed()
    if not checkpoints:
        raise UsageError(f"{run} holds no checkpoint")
    return [_checkpoint(checkpoint, None) for checkpoint in checkpoints]


def step_of(checkpoint: Path) -> int:
    """Return the completed updates of a step folder."""
    return int(checkpoint.name.removeprefix("step_"))


def _checkpoint(folder: Path, step: int | None) -> Source:
    folder = folder.absolute()
    if step not in (None, step_of(folder)):
        raise UsageError(f"{folder} is the checkpoint of step {step_of(folder)}, not {step}")
    if damage := list(find_damage(folder)):
        raise UntrustedError("; ".join(damage))
    return Source(folder, folder.parents[1], step_of(folder))
