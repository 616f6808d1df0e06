"""Ending a run that a signal asked to end, its state saved."""

from collections.abc import Sequence

from toolkit.config import TrainingConfig
from toolkit.errors import Preempted
from toolkit.training.callback import Callback, Progress
from toolkit.training.stop import Stopped, StopRequest
from toolkit.training.validation import Validation


class Preemption(Callback):
    """Ends the run when a signal asks for it, once the others have done their part of the step."""

    def __init__(
        self, config: TrainingConfig, request: StopRequest, validation: Validation
    ) -> None:
        self.config = config
        self.request = request
        self.validation = validation

    def own_number(self) -> float:
        """Return the number of the signal that this rank got, or 0."""
        return self.request.number

    def after_step(self, progress: Progress, numbers: Sequence[float]) -> None:
        """End unless the run is over by itself.

        Raises:
            Stopped: a rank was asked to end.
        """
        is_over = progress.step >= self.config.last_step and not self.validation.due(progress.step)
        if any(numbers) and not is_over:
            raise Stopped(int(max(numbers)))

    def at_end(self, progress: Progress, error: Exception | None) -> None:
        """Turn the signal into how the run ends.

        Raises:
            Preempted: a signal asked for the end; the state is saved unless the run never saves.
        """
        if not isinstance(error, Stopped):
            return
        self.request.ignore_further()
        if self.config.checkpoint_every == "never":
            outcome = "which is not saved, as training.checkpoint_every is never"
        else:
            outcome = "which is saved; start again to resume"
        raise Preempted(f"stopped by {error.name} after step {progress.step}, {outcome}")
