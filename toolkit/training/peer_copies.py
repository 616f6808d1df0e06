"""When a run copies its state to another machine's memory, and what that costs."""

import time
from collections.abc import Sequence
from statistics import median

from toolkit.checkpoint.peer_copy import PeerCopy
from toolkit.errors import SaveError
from toolkit.memory.hardware import with_unit
from toolkit.training.build import Run
from toolkit.training.callback import Callback, Log, Progress
from toolkit.training.resume import describe


class PeerCopies(Callback):
    """Copies the state every `training.peer_copy_every` steps."""

    def __init__(self, run: Run, copy: PeerCopy, log: Log) -> None:
        self.run = run
        self.copy = copy
        self.log = log
        self._seconds: list[float] = []

    def after_step(self, progress: Progress, numbers: Sequence[float]) -> None:
        """Copy when it is time, but not the last state, which is saved.

        Raises:
            SaveError: there was too little memory, and the run is to stop then.
        """
        training = self.run.config.training
        if progress.step % training.peer_copy_every or progress.step == training.last_step:
            return
        started = time.perf_counter()
        try:
            self.copy.take(describe(self.run, progress))
        except SaveError as error:
            if training.on_save_error != "warn":
                raise
            self.log(f"warning: {error}; the run goes on without this copy")
        else:
            self._seconds.append(time.perf_counter() - started)

    def at_end(self, progress: Progress, error: Exception | None) -> None:
        """Report what the copies cost, and give their memory back."""
        if self._seconds:
            self.log(
                f"peer copy  every {self.run.config.training.peer_copy_every} steps, median "
                f"{median(self._seconds):.3f} s, {with_unit(self.copy.held_bytes)} held by rank 0"
            )
        self.copy.close()
