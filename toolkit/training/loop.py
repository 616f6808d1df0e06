"""The loop: batch, update, callbacks."""

import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager

import numpy as np
import torch

from toolkit.errors import NonFiniteError
from toolkit.training.build import Run
from toolkit.training.callback import Callback, Progress
from toolkit.training.read_ahead import ReadAhead
from toolkit.training.schedule import lr_at
from toolkit.training.step import MicroBatch, StepResult, train_step
from toolkit.training.stop import Stopped

MAX_OVERFLOWS = 20
"""fp16 updates skipped before giving up; the loss scale halves each time, 65,536 to 1 in 16."""


class Loop:
    """One start of a run, from where its progress is to its last step.

    Args:
        run: what `build_run` returned.
        progress: where the run is; kept up to date.
        callbacks: what happens between the steps, in this order.
    """

    def __init__(self, run: Run, progress: Progress, callbacks: Sequence[Callback]) -> None:
        self.run = run
        self.progress = progress
        self.callbacks = callbacks
        self.batches = ReadAhead(run.batches.micro_batches)

    def fit(self) -> None:
        """Train from where the run is to `training.stop_at`, or to its end.

        Raises:
            NonFiniteError: fp16 overflows at any loss scale.
            ToolkitError: what a callback raised; each documents when it does.
        """
        config, progress = self.run.config, self.progress
        with self._from_start_to_end():
            while progress.step < config.training.last_step:
                started = time.perf_counter()
                micro_batches = self._next_batch()
                progress.lr = lr_at(progress.step, config.optimizer, steps=config.training.steps)
                numbers = self._exchange(self._update(micro_batches))
                progress.was_skipped = self.run.engine.step_was_skipped
                progress.seconds = time.perf_counter() - started
                progress.step += 1
                progress.data_step += 1
                progress.updates += not progress.was_skipped
                progress.done += 1
                for callback, of_ranks in zip(self.callbacks, numbers, strict=True):
                    callback.after_step(progress, of_ranks)

    @contextmanager
    def _from_start_to_end(self) -> Iterator[None]:
        """Call `at_start`, and `at_end` where all ranks end together; elsewhere one is alone."""
        error: Exception | None = None
        try:
            for callback in self.callbacks:
                callback.at_start(self.progress)
            yield
        except (Stopped, NonFiniteError) as found:
            error = found
        for callback in self.callbacks:
            callback.at_end(self.progress, error)
        if error is not None:
            raise error

    def _next_batch(self) -> list[MicroBatch]:
        """Return this rank's part, each array on the device, with dropout seeded for it."""
        device = self.run.engine.device
        if self.run.config.model.dropout:
            _seed_dropout(self.run.config.seed, self.progress.data_step, self.run.engine.rank)
        return [
            (torch.from_numpy(tokens).to(device), torch.from_numpy(targets).to(device))
            for tokens, targets in self.batches(self.progress.data_step)
        ]

    def _update(self, micro_batches: list[MicroBatch]) -> StepResult:
        """Update once; where fp16 overflowed, again from the same batch at the lower loss scale.

        A skipped update is no step: neither the schedule nor the data moves on.
        """
        engine, progress = self.run.engine, self.progress
        with ExitStack() as during:
            for callback in self.callbacks:
                during.enter_context(callback.during_update(progress))
            for progress.overflows in range(MAX_OVERFLOWS):
                result = train_step(engine, micro_batches, lr=progress.lr, callbacks=self.callbacks)
                if self.run.config.precision != "fp16" or not engine.step_was_skipped:
                    return result
            raise NonFiniteError(
                f"step {progress.step + 1}: fp16 gradients overflowed {MAX_OVERFLOWS} times in a "
                "row at ever smaller loss scales; lower optimizer.lr or use precision: bf16"
            )

    def _exchange(self, result: StepResult) -> list[tuple[float, ...]]:
        """Share what each rank knows alone: its part of the loss, a number of each callback."""
        own = [float(result.loss_share), *(callback.own_number() for callback in self.callbacks)]
        shares, *numbers = zip(*self.run.engine.ranks.gather_numbers(own), strict=True)
        self.progress.loss, self.progress.grad_norm = sum(shares), float(result.grad_norm)
        return numbers


def _seed_dropout(seed: int, step: int, rank: int) -> None:
    """Make dropout a function of (seed, step, rank): resuming needs no generator state."""
    torch.manual_seed(int(np.random.SeedSequence([seed, step, rank]).generate_state(1)[0]))
