"""From a run's checkpoints back into a running engine."""

import platform
from collections.abc import Callable
from pathlib import Path

from toolkit.checkpoint.state import read_state, shapes_of
from toolkit.checkpoint.store import CheckpointStore
from toolkit.checkpoint.training_state import TrainingState, compare_runs, read_training_state
from toolkit.errors import UntrustedError
from toolkit.training.build import Run
from toolkit.training.run_folder import package_versions


def resume(
    run: Run, store: CheckpointStore, say: Callable[[str], None], *, strict: bool
) -> TrainingState | None:
    """Load the newest good checkpoint of a run; return where it is, or None for a new run.

    Every rank must call this; each checks and reads its share.

    Raises:
        UntrustedError: none of the checkpoints is good, or, with `strict`, the newest is not.
        UsageError: the configuration means another run.
    """
    checkpoint, problems = _newest_good(run, store)
    if problems and strict:
        raise UntrustedError("; ".join(problems) + "; passed over only without --strict")
    for problem in problems:
        say(f"passed over: {problem}")
    if checkpoint is None:
        return None
    position = read_training_state(checkpoint)
    config = run.config.model_dump(mode="json")
    for line in compare_runs(checkpoint, position, config, run.data):
        say(f"changed: {line}")
    _load(run, checkpoint, position)
    say(f"carrying on from {checkpoint} after {position.step} steps")
    return position


def go_back(run: Run, store: CheckpointStore) -> tuple[Path, TrainingState] | None:
    """Load the newest good checkpoint into a run that has gone on since; None if there is none."""
    checkpoint, _ = _newest_good(run, store)
    if checkpoint is None:
        return None
    position = read_training_state(checkpoint)
    _load(run, checkpoint, position)
    if run.config.optimizer.name == "adamw" and not position.moments:
        run.engine.start_moments(position.updates)
    return checkpoint, position


def _newest_good(run: Run, store: CheckpointStore) -> tuple[Path | None, list[str]]:
    engine = run.engine
    return store.newest_good(
        rank=engine.rank, world_size=engine.world_size, gather=engine.gather_from_ranks
    )


def _load(run: Run, checkpoint: Path, position: TrainingState) -> None:
    read_state(run.engine, checkpoint, with_moments=position.moments, updates=position.updates)
    if position.loss_scale and run.engine.loss_scale:
        run.engine.load_loss_scale(position.loss_scale)


def describe(run: Run, *, step: int, data_step: int, updates: int) -> TrainingState:
    """Return the position to be saved with the tensors."""
    return TrainingState(
        step=step,
        data_step=data_step,
        updates=updates,
        tokens=step * run.plan.tokens_per_step,
        # Before the first update AdamW has no state.
        moments=run.config.optimizer.name == "adamw" and updates > 0,
        loss_scale=run.engine.loss_scale,
        strategy=run.engine.launched.strategy,
        world_size=run.engine.world_size,
        shapes=shapes_of(run.engine),
        config=run.config.model_dump(mode="json"),
        data=run.data,
        versions={"python": platform.python_version(), **package_versions()},
    )
