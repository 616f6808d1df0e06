"""The loop: steps, with evaluation, samples and checkpoints between them."""

import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import torch

from toolkit.checkpoint.store import CheckpointStore
from toolkit.checkpoint.training_state import TrainingState
from toolkit.engines.effective import check_first_step
from toolkit.engines.replicas import check_replicas
from toolkit.errors import NonFiniteError, Preempted
from toolkit.memory.advice import comparison_after
from toolkit.memory.allocator import MeasuredPeak, measure_peak
from toolkit.program.readers.peak import Peak
from toolkit.training.build import Run
from toolkit.training.health import Health
from toolkit.training.profile import Profile
from toolkit.training.read_ahead import ReadAhead
from toolkit.training.report import RunReport, line_of
from toolkit.training.resume import describe, go_back, resume
from toolkit.training.run_folder import package_versions
from toolkit.training.saving import Saving
from toolkit.training.schedule import lr_at
from toolkit.training.step import MicroBatch, StepResult, train_step
from toolkit.training.stop import Stopped, StopRequest
from toolkit.training.stragglers import Stragglers
from toolkit.training.validation import Validation

MAX_SKIPPED_IN_A_ROW = 20
"""fp16 updates left out before giving up; the loss scale halves each time, 65,536 to 1 in 16."""


class Loop:
    """One start of a run, from the newest checkpoint in its folder to its last step.

    Args:
        run: what `build_run` returned.
        folder: the run folder.
        say: prints a line on rank 0 and does nothing elsewhere.
        estimate: of the memory at the peak, to be compared with what is measured.
        stop: whether a signal has asked for the end.
        mark: called with the number of completed steps whenever there is progress.
        strict: refuse to pass over a damaged checkpoint.

    Attributes:
        step: completed steps.
        data_step: global batches taken from the data, those skipped by rolling back included.
        updates: optimizer updates made.
    """

    def __init__(
        self,
        run: Run,
        folder: Path,
        say: Callable[[str], None],
        *,
        estimate: Peak,
        stop: StopRequest | None = None,
        mark: Callable[[int], None] = lambda step: None,
        strict: bool = False,
    ) -> None:
        self.run = run
        self.config = run.config
        self.engine = run.engine
        self.folder = folder
        self.say = say
        self.stop = stop or StopRequest()
        self.mark = mark
        self.batches = ReadAhead(run.batches.micro_batches)
        self.store = CheckpointStore(folder / "checkpoints")
        self.saving = Saving(run, self.store, say)
        self.health = Health(self.config.training)
        self.stragglers = Stragglers(self.engine)
        self.step = self.data_step = self.updates = 0
        position = resume(run, self.store, say, strict=strict)
        if position is not None:
            self._take(position)
        self.saving.saved_step = self.step
        self._gone_back_to: Path | None = None
        self.report = RunReport(self.engine, folder, say, line=line_of(run), last_step=self.step)
        self.profile = Profile(folder / "profile", self.engine, self.config.training.profile, say)
        self.validation = Validation(run, self.report, self.stop)
        self.estimate = estimate
        self.peak_memory_bytes: int | None = None
        self.last_peak: MeasuredPeak | None = None

    def _take(self, position: TrainingState) -> None:
        self.step, self.updates = position.step, position.updates
        self.data_step = max(self.data_step, position.data_step)

    def fit(self) -> None:
        """Train from where the run is to `training.stop_at`, or to its end.

        Raises:
            NonFiniteError: the loss or the gradient norm is not a number, and the run's policy is
                to end, or going back did not help.
            SaveError: a checkpoint could not be written, and the run's policy is to end.
            Preempted: a signal asked for the end; the state is saved unless the run never saves.
        """
        training = self.config.training
        last = training.last_step
        try:
            self._catch_up(last)
            self._train_to(last)
        except Stopped as stopped:
            self._end_early(stopped.name)
        except NonFiniteError:
            # All ranks end here, so what is still being written can be completed.
            self.saving.close()
            raise
        self.saving.close()
        if self.peak_memory_bytes:
            self.say(comparison_after(self.estimate, self.peak_memory_bytes))
        if self.engine.rank == 0 and self.last_peak is not None:
            self.last_peak.keep_calibration(run=str(self.folder), versions=package_versions())

    def _catch_up(self, last: int) -> None:
        """Do what the start before was ended in: the evaluation of the last step."""
        training = self.config.training
        is_due = self.step > 0 and _due(self.step, training.eval_every, last)
        missing = self.validation.missing(self.step) if is_due else []
        if missing:
            self.validation.record(self.step, missing)
        elif self.step >= last:
            self.say(f"nothing to do: {self.step} of {last} steps are done")

    def _train_to(self, last: int) -> None:
        training = self.config.training
        done = 0
        while self.step < last:
            self.mark(self.step)
            with self._watch() if done == 0 else nullcontext():
                stop, writing = self._train_once(done=done)
            done += 1
            for sentence in self.stragglers.look():
                self.say(f"warning: {sentence}")
            if _due(self.step, training.check_replicas_every, last):
                check_replicas(self.engine)
            # Before the evaluation, which may take long, and in which the run may be killed.
            if self.saving.is_due(self.step, last=last):
                self._save_new()
            elif not writing:
                self.saving.finish()
            is_due = _due(self.step, training.eval_every, last)
            kinds = self.validation.kinds if is_due else []
            if stop and (kinds or self.step < last):
                raise Stopped(stop)
            self.validation.record(self.step, kinds)

    def _watch(self) -> AbstractContextManager[None]:
        return check_first_step(self.engine, self.run.reductions)

    def _can_measure(self, done: int) -> bool:
        """A GPU's allocator counts at no cost; a CPU's only in one profiled step, the second."""
        return self.engine.device.type == "cuda" or done == 1

    def _train_once(self, *, done: int) -> tuple[int, int]:
        """Do one step; return what all ranks agreed on: a signal to stop for, and whether any rank
        is still writing a checkpoint.

        Args:
            done: steps since this start; the first is watched, and so not timed or measured.
        """
        started = time.perf_counter()
        if self.config.model.dropout:
            _seed_dropout(self.config.seed, self.data_step, self.engine.rank)
        micro_batches = [self._on_device(batch) for batch in self.batches(self.data_step)]
        lr = lr_at(self.step, self.config.optimizer, steps=self.config.training.steps)
        measured = done > 0 and self._can_measure(done)
        with (
            measure_peak(self.engine.device) if measured else nullcontext() as peak,
            self.profile.during_update(self.step + 1, done=done),
        ):
            result, skipped = self._update(micro_batches, lr)
        loss, stop, writing = self._agree(result, peak)
        grad_norm, left_out = float(result.grad_norm), self.engine.step_was_skipped
        step_s = time.perf_counter() - started
        verdict = self.health.judge(
            step=self.step + 1, loss=loss, grad_norm=grad_norm, left_out=left_out
        )
        self.step += 1
        self.data_step += 1
        self.updates += not left_out
        if verdict in ("left_out", "roll_back"):
            if left_out:
                self.report.left_out(self.step, loss=loss, grad_norm=grad_norm)
            if verdict == "roll_back":
                self._go_back()
            return stop, writing
        record = {
            "kind": "train",
            "step": self.step,
            "loss": loss,
            "grad_norm": grad_norm,
            "lr": lr,
            "tokens": self.step * self.run.plan.tokens_per_step,
            "tokens_per_s": self.run.plan.tokens_per_step / step_s,
            "step_s": step_s,
            "peak_memory_bytes": self.peak_memory_bytes,
            "skipped": skipped,
            **(peak.on_device() if peak else {}),
        }
        self.report.trained(record, timed=done > 0)
        if verdict == "spike":
            self.say(f"warning: step {self.step}: the loss {loss:.4f} is far above those before it")
        return stop, writing

    def _update(self, micro_batches: list[MicroBatch], lr: float) -> tuple[StepResult, int]:
        """Update once; where fp16 overflowed, again from the same batch at the lower loss scale.

        A skipped update is no step: neither the schedule nor the data moves on.
        """
        for skipped in range(MAX_SKIPPED_IN_A_ROW):
            result = train_step(self.engine, micro_batches, lr=lr)
            if self.config.precision != "fp16" or not self.engine.step_was_skipped:
                return result, skipped
        raise NonFiniteError(
            f"step {self.step + 1}: fp16 gradients overflowed {MAX_SKIPPED_IN_A_ROW} times in a "
            "row at ever smaller loss scales; lower optimizer.lr or use precision: bf16"
        )

    def _agree(self, result: StepResult, peak: MeasuredPeak | None) -> tuple[float, int, int]:
        """Share in one collective what each rank knows alone: its part of the loss, its memory, a
        signal, unfinished writing.

        Returns:
            The loss, the highest number of a signal that any rank got or 0, whether any is writing.
        """
        peak_bytes = peak.bytes if peak else 0
        own = [float(result.loss_share), peak_bytes, self.stop.number, self.saving.is_writing]
        shares, peaks, stops, writing = zip(*self.engine.gather_numbers(own), strict=True)
        if peak is not None:
            self.last_peak = peak
            self.peak_memory_bytes = max(self.peak_memory_bytes or 0, int(max(peaks)))
        return sum(shares), int(max(stops)), int(max(writing))

    def _go_back(self) -> None:
        """Load the last checkpoint and go on from there with the data that comes next.

        Raises:
            NonFiniteError: there is none, or this is the second time to go back to it.
        """
        self.saving.finish()
        found, step = go_back(self.run, self.store), self.step
        if found is None or found[0] == self._gone_back_to:
            raise NonFiniteError(
                f"step {step}: to be rolled back, but "
                + ("there is no checkpoint" if found is None else f"{found[0]} did not help before")
            )
        self._gone_back_to, position = found
        self._take(position)
        self.saving.saved_step = self.step
        self.health.forget()
        self.report.resume_from(self.step)
        self.say(
            f"rolled back from step {step} to {found[0]}; going on after {self.data_step} batches "
            "of the data"
        )

    def _save_new(self) -> None:
        """Save, unless the run has just gone back to this very state."""
        if self.saving.saved_step != self.step:
            self.saving.save(self._position())

    def _end_early(self, name: str) -> None:
        if self.saving.every == "never":
            outcome = "which is not saved, as training.checkpoint_every is never"
        else:
            self.saving.save_last(self._position())
            outcome = "which is saved; start again to carry on"
        self.stop.ignore_further()
        raise Preempted(f"stopped by {name} after step {self.step}, {outcome}")

    def _on_device(self, batch: tuple[np.ndarray, np.ndarray]) -> MicroBatch:
        tokens, targets = (torch.from_numpy(part).to(self.engine.device) for part in batch)
        return tokens, targets

    def _position(self) -> TrainingState:
        return describe(self.run, step=self.step, data_step=self.data_step, updates=self.updates)

    def figures(self) -> dict[str, Any]:
        """Return what the summary says of the run; the first, watched step is not timed."""
        return {
            "steps": self.step,
            "final_loss": self.report.loss,
            "tokens_per_s": self.report.tokens_per_s,
            "peak_memory_bytes": self.peak_memory_bytes or self.report.earlier_peak_bytes,
            "estimated_peak_memory_bytes": self.estimate.total,
        }


def _due(step: int, every: int, last: int) -> bool:
    return every > 0 and (step % every == 0 or step == last)


def _seed_dropout(seed: int, step: int, rank: int) -> None:
    """Make dropout a function of (seed, step, rank): carrying on needs no generator state."""
    torch.manual_seed(int(np.random.SeedSequence([seed, step, rank]).generate_state(1)[0]))
