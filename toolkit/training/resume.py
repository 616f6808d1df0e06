"""From a run's checkpoints back into a running engine, and what is saved beside its tensors."""

import platform
from pathlib import Path

from toolkit.checkpoint.state import read_state, shapes_of
from toolkit.checkpoint.store import CheckpointStore
from toolkit.checkpoint.training_state import TrainingState, compare_runs, read_training_state
from toolkit.engines.engine import Engine
from toolkit.errors import UntrustedError
from toolkit.training.build import Run
from toolkit.training.callback import Log, Progress
from toolkit.training.run_folder import package_versions


def resume(run: Run, store: CheckpointStore, log: Log, *, strict: bool) -> Progress:
    """Load the newest good checkpoint of a run, if it has any; return where the run is.

    Every rank must call this; each checks and reads its share.

    Raises:
        UntrustedError: none of the checkpoints is good, or, with `strict`, the newest is not.
        UsageError: the configuration means another run.
    """
    checkpoint, problems = newest_good(run.engine, store)
    if problems and strict:
        raise UntrustedError("; ".join(problems) + "; skipped only without --strict")
    for problem in problems:
        log(f"skipped: {problem}")
    progress = Progress()
    if checkpoint is None:
        return progress
    state = read_training_state(checkpoint)
    config = run.config.model_dump(mode="json")
    for line in compare_runs(checkpoint, state, config, run.data):
        log(f"changed: {line}")
    load(run.engine, checkpoint, state)
    _continue_from(state, progress)
    log(f"resuming from {checkpoint} after {state.step} steps")
    return progress


def roll_back(run: Run, store: CheckpointStore, progress: Progress) -> Path | None:
    """Load the newest good checkpoint into a run that has trained since; None if there is none."""
    checkpoint, _ = newest_good(run.engine, store)
    if checkpoint is None:
        return None
    state = read_training_state(checkpoint)
    load(run.engine, checkpoint, state)
    _continue_from(state, progress)
    if run.config.optimizer.name == "adamw" and not state.moments:
        run.engine.state.start_moments(state.updates)
    return checkpoint


def newest_good(engine: Engine, store: CheckpointStore) -> tuple[Path | None, list[str]]:
    """Return the newest checkpoint that is what was written, and the damage of newer ones.

    Every rank must call this; each checks its share.

    Raises:
        UntrustedError: none of the checkpoints is good.
    """
    return store.newest_good(
        rank=engine.rank, world_size=engine.world_size, gather=engine.ranks.gather
    )


def load(engine: Engine, checkpoint: Path, state: TrainingState) -> None:
    """Load a verified checkpoint, its loss scale included, into an engine; every rank must."""
    read_state(engine, checkpoint, with_moments=state.moments, updates=state.updates)
    if state.loss_scale and engine.state.loss_scale:
        engine.state.load_loss_scale(state.loss_scale)


def _continue_from(state: TrainingState, progress: Progress) -> None:
    progress.step, progress.updates = state.step, state.updates
    # Data that was taken since is not taken again.
    progress.data_step = max(progress.data_step, state.data_step)


def describe(run: Run, progress: Progress) -> TrainingState:
    """Return what is to be saved with the tensors."""
    return TrainingState(
        step=progress.step,
        data_step=progress.data_step,
        updates=progress.updates,
        tokens=progress.step * run.plan.tokens_per_step,
        # Before the first update AdamW has no state.
        moments=run.config.optimizer.name == "adamw" and progress.updates > 0,
        loss_scale=run.engine.state.loss_scale,
        strategy=run.engine.launched.strategy,
        world_size=run.engine.world_size,
        shapes=shapes_of(run.engine),
        config=run.config.model_dump(mode="json"),
        data=run.data,
        versions={"python": platform.python_version(), **package_versions()},
    )
