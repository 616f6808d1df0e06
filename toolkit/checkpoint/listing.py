"""The checkpoints of a run folder: which there are, whether they are intact, which one is meant."""

from collections.abc import Iterator
from pathlib import Path

from toolkit.checkpoint.store import (
    CheckpointStore,
    damaged_files,
    find_damage,
    read_manifest,
    step_name,
    step_of,
)
from toolkit.checkpoint.training_state import read_training_state
from toolkit.counted import counted
from toolkit.errors import UntrustedError, UsageError


def list_checkpoints(run: Path) -> Iterator[str]:
    """Yield a line for each checkpoint of a run, the newest last; sizes are checked, bytes not.

    Raises:
        UsageError: there is no run, or it has no checkpoint.
    """
    for checkpoint in committed_checkpoints(run):
        try:
            yield f"{checkpoint.name}  {_describe(checkpoint)}"
        except UntrustedError as error:
            yield f"{checkpoint.name}  damaged: {error}"


def _describe(checkpoint: Path) -> str:
    files = read_manifest(checkpoint)
    if damage := next(damaged_files(checkpoint, files, rank=None), None):
        raise UntrustedError(damage)
    state = read_training_state(checkpoint)
    return (
        f"{state.tokens:,} tokens, written by {state.strategy} on {state.world_size}, "
        f"{counted(len(files) - 1, 'part')}, "
        f"{sum(file.bytes for file in files.values()):,} bytes"
    )


def verify_checkpoints(run: Path) -> tuple[list[str], list[str]]:
    """Read every byte of a run's checkpoints; return lines for the good and for the bad ones.

    Raises:
        UsageError: there is no run, or it has no checkpoint.
    """
    good, problems = [], []
    for checkpoint in committed_checkpoints(run):
        damage = list(find_damage(checkpoint))
        problems += damage
        if not damage:
            good.append(f"{checkpoint} is what was written")
    return good, problems


def choose_checkpoint(run: Path, step: int | None) -> Path:
    """Return the verified checkpoint of a step, or the newest good one.

    Raises:
        UsageError: there is no run, or no such checkpoint.
        UntrustedError: it is damaged.
    """
    committed = committed_checkpoints(run)
    if step is None:
        found, _ = CheckpointStore(run / "checkpoints").newest_good()
        assert found is not None
        return found
    checkpoint = run / "checkpoints" / step_name(step)
    if checkpoint not in committed:
        steps = ", ".join(str(step_of(path)) for path in committed)
        raise UsageError(f"{run} has no checkpoint of step {step}; there are {steps}")
    if damage := list(find_damage(checkpoint)):
        raise UntrustedError("; ".join(damage))
    return checkpoint


def committed_checkpoints(run: Path) -> list[Path]:
    """Return the step folders of a run, oldest first.

    Raises:
        UsageError: there is no run, or it has no checkpoint.
    """
    if not run.is_dir():
        raise UsageError(f"{run} is no run folder; give <output_dir>/<run_name>")
    committed = CheckpointStore(run / "checkpoints").committed()
    if not committed:
        raise UsageError(f"{run} holds no checkpoint")
    return committed
