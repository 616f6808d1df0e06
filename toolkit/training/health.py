"""Whether a step's numbers can be trained on from; all ranks have the same, so they agree."""

import math
from collections import deque
from collections.abc import Sequence
from statistics import median

from toolkit.config import TrainingConfig
from toolkit.errors import NonFiniteError
from toolkit.training.callback import Callback, Progress, Verdict

_WINDOW = 50
_FEWEST = 20
_FAR = 10.0
"""Robust standard deviations above the median; 1.4826 MAD is one for a normal distribution."""


class Health(Callback):
    """Judges one step after another by the run's policies: sets `Progress.verdict`."""

    def __init__(self, policy: TrainingConfig) -> None:
        self.policy = policy
        self._skipped_in_a_row = 0
        self._losses: deque[float] = deque(maxlen=_WINDOW)

    def after_step(self, progress: Progress, numbers: Sequence[float]) -> None:
        """Judge the step.

        Raises:
            NonFiniteError: the run's policy ends here.
        """
        if math.isfinite(progress.loss) and math.isfinite(progress.grad_norm):
            self._skipped_in_a_row = 0
            progress.verdict = self._judge_finite(progress.loss)
        else:
            progress.verdict = self._judge_non_finite(progress)

    def _judge_non_finite(self, progress: Progress) -> Verdict:
        numbers = f"the loss is {progress.loss} and the gradient norm {progress.grad_norm}"
        found = f"step {progress.step}: {numbers}"
        if self.policy.on_non_finite == "raise" or not progress.was_skipped:
            raise NonFiniteError(f"{found}; nothing was saved after this step")
        self._skipped_in_a_row += 1
        if self._skipped_in_a_row < self.policy.non_finite_limit:
            return "skipped"
        if self.policy.on_non_finite == "skip":
            raise NonFiniteError(
                f"{found}, as in {self._skipped_in_a_row} steps in a row, none of which changed "
                "the parameters; lower optimizer.lr, or set training.on_non_finite: roll_back"
            )
        return "roll_back"

    def _judge_finite(self, loss: float) -> Verdict:
        earlier = list(self._losses)
        self._losses.append(loss)
        if len(earlier) < _FEWEST:
            return "good"
        middle = median(earlier)
        spread = 1.4826 * median(abs(value - middle) for value in earlier)
        if loss <= middle + _FAR * max(spread, 1e-3 * middle):
            return "good"
        return "spike" if self.policy.on_loss_spike == "warn" else "roll_back"

    def forget(self) -> None:
        """Start anew after rolling back."""
        self._skipped_in_a_row = 0
        self._losses.clear()
