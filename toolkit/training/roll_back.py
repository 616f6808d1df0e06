"""Rolling back to the last checkpoint, past the data that the run failed on."""

from collections.abc import Sequence
from pathlib import Path

from toolkit.errors import NonFiniteError
from toolkit.training.build import Run
from toolkit.training.callback import Callback, Log, Progress
from toolkit.training.health import Health
from toolkit.training.report import RunReport
from toolkit.training.resume import roll_back
from toolkit.training.saving import Saving


class RollBack(Callback):
    """Loads the last checkpoint where that is the verdict; the data that failed is not taken again.

    What `saving` writes is completed first; `health` and `report` forget the steps that are undone.
    """

    def __init__(
        self, run: Run, saving: Saving, health: Health, report: RunReport, log: Log
    ) -> None:
        self.run = run
        self.saving = saving
        self.health = health
        self.report = report
        self.log = log
        self._rolled_back_to: Path | None = None

    def after_step(self, progress: Progress, numbers: Sequence[float]) -> None:
        """Roll back if that is the verdict.

        Raises:
            NonFiniteError: there is no checkpoint, or rolling back to it did not help before.
        """
        if progress.verdict != "roll_back":
            return
        self.saving.finish()
        failed = progress.step
        checkpoint = roll_back(self.run, self.saving.store, progress)
        if checkpoint is None or checkpoint == self._rolled_back_to:
            raise NonFiniteError(
                f"step {failed}: to be rolled back, but "
                + (f"{checkpoint} did not help before" if checkpoint else "there is no checkpoint")
            )
        self._rolled_back_to = checkpoint
        self.saving.saved_step = progress.step
        self.health.forget()
        self.report.resume_from(progress.step)
        self.log(
            f"rolled back from step {failed} to {checkpoint}; going on after {progress.data_step} "
            "batches of the data"
        )
