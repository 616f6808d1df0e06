"""When a run saves, and what happens when a checkpoint cannot be written."""

import time
from collections.abc import Sequence

from toolkit.checkpoint.saver import Saver
from toolkit.checkpoint.store import CheckpointStore
from toolkit.errors import SaveError
from toolkit.training.build import Run
from toolkit.training.callback import Callback, Log, Progress
from toolkit.training.resume import describe
from toolkit.training.schedule import is_due
from toolkit.training.stop import Stopped


class Saving(Callback):
    """The checkpoints of one start of a run, by the run's policies; its calls are collectives.

    Attributes:
        saved_step: the step of the newest state that was saved or loaded.
    """

    def __init__(self, run: Run, store: CheckpointStore, log: Log, *, saved_step: int) -> None:
        self.run = run
        self.store = store
        self.log = log
        self.saved_step = saved_step
        self._begun_step = 0
        self._started = 0.0
        training = run.config.training
        self._saver = Saver(
            run.engine,
            store,
            keep_last=training.keep_last,
            asynchronous=training.async_save,
            with_moments=run.config.optimizer.name == "adamw",
        )

    def own_number(self) -> float:
        """Return whether this rank still writes behind the training."""
        return self._saver.is_writing

    def after_step(self, progress: Progress, numbers: Sequence[float]) -> None:
        """Save when it is time, unless the run has just rolled back to this very state.

        Raises:
            SaveError: it did not succeed and the run is to stop then.
        """
        training = self.run.config.training
        every, last = training.checkpoint_every, training.last_step
        if every != "never" and (progress.step == last or is_due(progress.step, every, last=last)):
            if self.saved_step != progress.step:
                self._save(progress)
        elif not any(numbers):
            self.finish()

    def at_end(self, progress: Progress, error: Exception | None) -> None:
        """Complete what was begun, and have the state of a run that is stopped on the disk.

        Raises:
            SaveError: it is not there.
        """
        self.finish()
        saves = isinstance(error, Stopped) and self.run.config.training.checkpoint_every != "never"
        if saves and self.saved_step != progress.step:
            self._save(progress, wait=True)
        self._saver.close()
        if saves and self.saved_step != progress.step:
            raise SaveError(f"the state after step {progress.step} is not saved")

    def _save(self, progress: Progress, *, wait: bool = False) -> None:
        """Save this state; where saving is asynchronous and `wait` is not set, only begin to."""
        self.finish()
        self._started = time.perf_counter()
        self._begun_step = progress.step
        try:
            self._saver.begin(describe(self.run, progress))
        except SaveError as error:
            self._fail(error)
            return
        if wait or not self._saver.asynchronous:
            self.finish()
        else:
            held_s = time.perf_counter() - self._started
            self.log(f"saving step {progress.step} meanwhile, training was held up {held_s:.2f} s")

    def finish(self) -> None:
        """Complete the checkpoint that was begun, if any.

        Raises:
            SaveError: it did not succeed and the run is to stop then.
        """
        try:
            final = self._saver.finish()
        except SaveError as error:
            self._fail(error)
            return
        if final is not None:
            self.saved_step = self._begun_step
            self.log(f"saved {final} in {time.perf_counter() - self._started:.1f} s")

    def _fail(self, error: SaveError) -> None:
        if self.run.config.training.on_save_error != "warn":
            raise error
        self.log(f"warning: {error}; the run goes on, and its earlier checkpoints are as they were")
