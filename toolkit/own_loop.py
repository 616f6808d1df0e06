"""What a training loop of one's own needs beside the engine: the launch, memory and checkpoints."""

import os
import platform
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path

import torch

from toolkit.checkpoint.saver import Saver
from toolkit.checkpoint.state import shapes_of
from toolkit.checkpoint.store import CheckpointStore
from toolkit.checkpoint.training_state import TrainingState, read_training_state
from toolkit.config import load_run_config
from toolkit.engines.engine import Engine
from toolkit.engines.launched import Launched, read_launch
from toolkit.engines.process_group import leave_process_group, start_process_group
from toolkit.engines.strategies import Strategy, check_installed, replicas_of
from toolkit.program.readers.peak import Peak
from toolkit.program.settings import Device, settings_of_run
from toolkit.program.step import estimate_peak
from toolkit.training.resume import load, newest_good
from toolkit.training.run_folder import package_versions

_TIMEOUT_S = 600.0


@contextmanager
def join_launch(*, timeout_s: float = _TIMEOUT_S) -> Iterator[tuple[Launched, torch.device]]:
    """Join the processes that `accelerate launch` started; yield this one's place and device.

    Args:
        timeout_s: seconds that a process waits for the others.

    Raises:
        UsageError: the launch asks for what no strategy here is.
        HangError: not all processes came in time.
    """
    launched = read_launch(os.environ)
    check_installed(launched.strategy)
    yield launched, start_process_group(launched, timeout=timedelta(seconds=timeout_s))
    leave_process_group()


def estimate_memory(
    config: str | Path | None = None,
    *,
    overrides: Sequence[str] = (),
    strategy: Strategy = "single",
    world_size: int = 1,
    device: Device = "cuda",
) -> Peak:
    """Return what one rank of a GPT-2 run holds at the peak of its step, in bytes, by part.

    Args:
        config: a run configuration; the defaults if None.
        overrides: of it, as `section.key=value`.
        strategy: that of the launch.
        world_size: ranks, 1 for `single`.
        device: what it runs on.

    Raises:
        UsageError: the configuration is wrong, or not for so many ranks.
    """
    settings = settings_of_run(
        load_run_config(config, overrides),
        strategy,
        world_size=world_size,
        replicas=replicas_of(strategy),
        device=device,
    )
    return estimate_peak(settings)


class Checkpoints:
    """The checkpoints of a loop: any strategy on any number of ranks reads what another wrote.

    All methods are collectives.

    Args:
        folder: of the checkpoints.
        engine: whose model and optimizer are saved; AdamW or SGD without momentum.
        keep_last: checkpoints to keep.
    """

    def __init__(self, folder: str | Path, engine: Engine, *, keep_last: int = 3) -> None:
        self._engine = engine
        self._store = CheckpointStore(Path(folder))
        self._saver = Saver(engine, self._store, keep_last=keep_last, asynchronous=False)

    def resume(self) -> int:
        """Load the newest good checkpoint; return its completed steps, 0 where there is none.

        Raises:
            UntrustedError: there are checkpoints, but none of them is good, or another model's.
        """
        found, _ = newest_good(self._engine, self._store)
        if found is None:
            return 0
        state = read_training_state(found)
        load(self._engine, found, state)
        return state.step

    def save(self, step: int, *, tokens: int = 0) -> Path:
        """Have the state after `step` updates on the disk when this returns; return its folder.

        Raises:
            SaveError: it could not be written; earlier checkpoints are as they were.
        """
        engine = self._engine
        state = TrainingState(
            step=step,
            data_step=step,
            updates=step,
            tokens=tokens,
            moments=step > 0 and "betas" in engine.optimizer.param_groups[0],
            loss_scale=engine.state.loss_scale,
            strategy=engine.launched.strategy,
            world_size=engine.world_size,
            shapes=shapes_of(engine),
            config={},
            data={},
            versions={"python": platform.python_version(), **package_versions()},
        )
        self._saver.begin(state)
        final = self._saver.finish()
        assert final is not None
        self._saver.close()
        return final
