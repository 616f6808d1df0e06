"""The one way in which something hangs on the training loop."""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from math import nan
from typing import Literal

Log = Callable[[str], None]
"""Prints a line on rank 0 and does nothing elsewhere."""
Phase = Literal["forward", "backward", "optimizer"]
Verdict = Literal["good", "skipped", "spike", "roll_back"]


@dataclass
class Progress:
    """Where a run is and what its last step found; the same on every rank.

    Attributes:
        step: completed steps.
        data_step: global batches taken from the data, those skipped by rolling back included.
        updates: optimizer updates made; fewer than steps where one was skipped as non-finite.
        done: steps since this start.
        lr: learning rate of the last step.
        loss: of its global batch, before the update, in nats.
        grad_norm: before clipping.
        seconds: from asking for its batch until all ranks had its numbers.
        overflows: updates that fp16 skipped before this one.
        was_skipped: whether it made no update because its gradient was not finite.
        verdict: what follows from its numbers.
    """

    step: int = 0
    data_step: int = 0
    updates: int = 0
    done: int = 0
    lr: float = nan
    loss: float = nan
    grad_norm: float = nan
    seconds: float = nan
    overflows: int = 0
    was_skipped: bool = False
    verdict: Verdict = "good"


class Callback:
    """Called by the loop at the same points on every rank; what is not overridden does nothing.

    The callbacks of a run are called one after the other, so each sees what those before it did.
    """

    def at_start(self, progress: Progress) -> None:
        """Called before the first step of a start, also where no step is left to do."""

    def during_update(self, progress: Progress) -> AbstractContextManager[None]:
        """Return the context of the update alone, without reading its batch."""
        return nullcontext()

    def on_phase(self, phase: Phase) -> None:
        """Called as forward and backward of each micro-step begin, and clipping and optimizer."""

    def own_number(self) -> float:
        """Return what this rank alone knows after an update; whole numbers stay exact to 2^53."""
        return 0.0

    def after_step(self, progress: Progress, numbers: Sequence[float]) -> None:
        """Called with every rank's `own_number`; one collective carries those of all callbacks."""

    def at_end(self, progress: Progress, error: Exception | None) -> None:
        """Called when all ranks end together: done, or by `Stopped` or `NonFiniteError`."""
