"""Checks of the running program: its first step against what was asked, its replicas' bits."""

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext

from toolkit.engines.effective import check_first_step
from toolkit.engines.replicas import check_replicas
from toolkit.training.build import Run
from toolkit.training.callback import Callback, Progress
from toolkit.training.schedule import is_due


class FirstStepCheck(Callback):
    """Compares the first update of a start with what was asked; raises as `check_first_step`."""

    def __init__(self, run: Run) -> None:
        self.run = run

    def during_update(self, progress: Progress) -> AbstractContextManager[None]:
        """Watch the first update."""
        if progress.done:
            return nullcontext()
        return check_first_step(self.run.engine, self.run.reductions)


class ReplicaCheck(Callback):
    """Compares replicas every `check_replicas_every` steps; raises as `check_replicas`."""

    def __init__(self, run: Run) -> None:
        self.run = run

    def after_step(self, progress: Progress, numbers: Sequence[float]) -> None:
        """Compare when it is time, and after the last step."""
        training = self.run.config.training
        if is_due(progress.step, training.check_replicas_every, last=training.last_step):
            check_replicas(self.run.engine)
