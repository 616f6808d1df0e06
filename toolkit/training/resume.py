"""From a run's checkpoints back into a running engine."""

import platform
from collections.abc import Callable
from pathlib import Path

from toolkit.checkpoint.state import read_state, shapes_of
from toolkit.checkpoint.store import CheckpointStore
from toolkit.checkpoint.training_state import TrainingState, compare_runs, read_training_state
from toolkit.engines.engine import Engine
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
    checkpoint, problems = newest_good(run.engine, store)
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
    load(run.engine, checkpoint, position)
    say(f"carrying on from {checkpoint} after {position.step} steps")
    return position


def go_back(run: Run, store: CheckpointStore) -> tuple[Path, TrainingState] | None:
    """Load the newest good checkpoint into a run that has gone on since; None if there is none."""
    checkpoint, _ = newest_good(run.engine, store)
    if checkpoint is None:
        return None
    position = read_training_state(checkpoint)
    load(run.engine, checkpoint, position)
    if run.config.optimizer.name == "adamw" and not position.moments:
        run.engine.state.start_moments(position.updates)
    return checkpoint, position


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


def describe(run: Run, *, step: int, data_step: int, updates: int) -> TrainingState:
    """Return the position to be saved with the tensors."""
    return TrainingState(
        step=step,
        data_step=data_step,
        updates=updates,
        tokens=step * run.plan.tokens_per_step,
        # Before the first update AdamW has no state.
        moments=run.config.optimizer.name == "adamw" and updates > 0,
        loss_scale=run.engine.state.loss_scale,
        strategy=run.engine.launched.strategy,
        world_size=run.engine.world_size,
        shapes=shapes_of(run.engine),
        config=run.config.model_dump(mode="json"),
        data=run.data,
        versions={"python": platform.python_version(), **package_versions()},
    )
