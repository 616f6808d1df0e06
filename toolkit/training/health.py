"""Whether a step's numbers can be gone on from; every rank has the same numbers, so all agree."""

import math
from collections import deque
from statistics import median
from typing import Literal

from toolkit.config import TrainingConfig
from toolkit.errors import NonFiniteError

Verdict = Literal["good", "left_out", "roll_back", "spike"]

_WINDOW = 50
_FEWEST = 20
_FAR = 10.0
"""Robust standard deviations above the median; 1.4826 MAD is one for a normal distribution."""


class Health:
    """Judges one step after another by the run's policies."""

    def __init__(self, policy: TrainingConfig) -> None:
        self.policy = policy
        self._left_out_in_a_row = 0
        self._losses: deque[float] = deque(maxlen=_WINDOW)

    def judge(self, *, step: int, loss: float, grad_norm: float, left_out: bool) -> Verdict:
        """Return what to do after `step`.

        Args:
            step: completed steps, this one included.
            loss: of the global batch.
            grad_norm: before clipping.
            left_out: whether the engine made no update because the gradient was not finite.

        Raises:
            NonFiniteError: the run's policy ends here.
        """
        if math.isfinite(loss) and math.isfinite(grad_norm):
            self._left_out_in_a_row = 0
            return self._judge_finite(loss)
        found = f"step {step}: the loss is {loss} and the gradient norm {grad_norm}"
        if self.policy.on_non_finite == "raise" or not left_out:
            raise NonFiniteError(f"{found}; nothing was saved after this step")
        self._left_out_in_a_row += 1
        if self._left_out_in_a_row < self.policy.non_finite_limit:
            return "left_out"
        if self.policy.on_non_finite == "skip":
            raise NonFiniteError(
                f"{found}, as in {self._left_out_in_a_row} steps in a row, none of which changed "
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
        self._left_out_in_a_row = 0
        self._losses.clear()
