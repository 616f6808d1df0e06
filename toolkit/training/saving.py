"""When a run saves: what is said, and what happens when a checkpoint cannot be written."""

import time
from collections.abc import Callable

from toolkit.checkpoint.saver import Saver
from toolkit.checkpoint.store import CheckpointStore
from toolkit.checkpoint.training_state import TrainingState
from toolkit.errors import SaveError
from toolkit.training.build import Run


class Saving:
    """The checkpoints of one start of a run, by the run's policies; its calls are collectives.

    Args:
        run: whose state is saved.
        store: where to.
        say: prints a line on rank 0 and does nothing elsewhere.

    Attributes:
        every: steps between checkpoints, 0 for the last state alone, or `never`.
        saved_step: the step of the newest state that was saved or loaded.
    """

    def __init__(self, run: Run, store: CheckpointStore, say: Callable[[str], None]) -> None:
        training = run.config.training
        self.say = say
        self.every = training.checkpoint_every
        self._goes_on = training.on_save_error == "warn"
        self.saved_step = 0
        self._begun_step = 0
        self._started = 0.0
        self._saver = Saver(
            run.engine,
            store,
            keep_last=training.keep_last,
            asynchronous=training.async_save,
            with_moments=run.config.optimizer.name == "adamw",
        )

    def is_due(self, step: int, *, last: int) -> bool:
        """Whether the state after `step` is to be saved, in a start that ends after step `last`."""
        if self.every == "never":
            return False
        return step == last or (self.every > 0 and step % self.every == 0)

    @property
    def is_writing(self) -> bool:
        """Whether this rank still writes behind the training."""
        return self._saver.is_writing

    def save(self, position: TrainingState, *, wait: bool = False) -> None:
        """Save this state; where saving is asynchronous and `wait` is not set, only begin to.

        Raises:
            SaveError: it did not succeed and the run is to stop then.
        """
        self.finish()
        self._started = time.perf_counter()
        self._begun_step = position.step
        try:
            self._saver.begin(position)
        except SaveError as error:
            self._failed(error)
            return
        if wait or not self._saver.asynchronous:
            self.finish()
        else:
            held_s = time.perf_counter() - self._started
            self.say(f"saving step {position.step} meanwhile, training was held up {held_s:.2f} s")

    def save_last(self, position: TrainingState) -> None:
        """Have this state on the disk when this returns.

        Raises:
            SaveError: it is not.
        """
        self.finish()
        if self.saved_step != position.step:
            self.save(position, wait=True)
        self._saver.close()
        if self.saved_step != position.step:
            raise SaveError(f"the state after step {position.step} is not saved")

    def finish(self) -> None:
        """Complete the checkpoint that was begun, if any; raises as `save`."""
        try:
            final = self._saver.finish()
        except SaveError as error:
            self._failed(error)
            return
        if final is not None:
            self.saved_step = self._begun_step
            self.say(f"saved {final} in {time.perf_counter() - self._started:.1f} s")

    def close(self) -> None:
        """Complete what was begun, and leave nothing behind that is to be deleted."""
        self.finish()
        self._saver.close()

    def _failed(self, error: SaveError) -> None:
        if not self._goes_on:
            raise error
        self.say(f"warning: {error}; the run goes on, and its earlier checkpoints are as they were")
