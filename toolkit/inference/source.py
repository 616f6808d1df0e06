"""Where trained weights are: a run, its configuration, one checkpoint, or a folder of GPT-2's."""

from dataclasses import dataclass
from pathlib import Path

from toolkit.checkpoint.listing import choose_checkpoint, committed_checkpoints
from toolkit.checkpoint.store import MANIFEST, step_of
from toolkit.errors import UsageError
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
        path = path.absolute()
        if step not in (None, step_of(path)):
            raise UsageError(f"{path} is the checkpoint of step {step_of(path)}, not {step}")
        return _checkpoint(choose_checkpoint(path.parents[1], step_of(path)))
    return _checkpoint(choose_checkpoint(find_run(path), step))


def find_all(path: Path) -> list[Source]:
    """Return every checkpoint of a run, oldest first; raises as `find_source`."""
    run = find_run(path)
    steps = [step_of(checkpoint) for checkpoint in committed_checkpoints(run)]
    return [_checkpoint(choose_checkpoint(run, step)) for step in steps]


def _checkpoint(folder: Path) -> Source:
    folder = folder.absolute()
    return Source(folder, folder.parents[1], step_of(folder))
