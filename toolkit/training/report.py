"""Where a run's numbers go: `metrics.jsonl`, trackers, the console, and the summary's figures."""

from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import Any

import torch

from toolkit.model.flops import utilisation
from toolkit.training.build import Run
from toolkit.training.callback import Callback, Log, Progress
from toolkit.training.memory import MemoryPeak
from toolkit.training.metrics import MetricsLog, TrainLine
from toolkit.training.run_folder import forget_summary
from toolkit.training.step_time import StepTimes
from toolkit.training.summary import Summary
from toolkit.training.trackers import log_sample

_RECENT = 100
"""Steps whose speed predicts how long the others will take."""


def line_of(run: Run) -> TrainLine:
    """Return the console line of a run's steps."""
    training, device = run.config.training, run.engine.device
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu"
    return TrainLine(
        steps=training.steps,
        last_step=training.last_step,
        every=training.log_every,
        steps_per_epoch=len(run.batches.dataset) / run.plan.sequences_per_step,
        utilisation=utilisation(
            run.config.model.sizes(),
            seq_len=run.config.data.seq_len,
            tokens_per_s=1.0,
            device=name,
            devices=run.engine.world_size,
            precision=run.config.precision,
        ),
    )


class RunReport(Callback):
    """Reports each step; only rank 0 writes and prints.

    Args:
        last_step: completed steps that the run resumes from; what the file holds beyond is dropped.
    """

    def __init__(
        self,
        run: Run,
        folder: Path,
        log: Log,
        *,
        memory: MemoryPeak,
        times: StepTimes,
        last_step: int,
    ) -> None:
        self.log = log
        self.memory = memory
        self.times = times
        self._plan = run.plan
        self._line = line_of(run)
        self._engine = run.engine
        self._folder = folder
        self._has_summary = True
        self._last_step = last_step
        self._file = self._open(last_step)
        earlier = [r for r in self._file.earlier if r["kind"] == "train"] if self._file else []
        self._loss: float | None = earlier[-1]["loss"] if earlier else None
        self._earlier_peak: int | None = earlier[-1]["peak_memory_bytes"] if earlier else None
        # The first step of a start is checked, and so not timed.
        self._rates: list[float] = [record["tokens_per_s"] for record in earlier[1:]]

    def _open(self, last_step: int) -> MetricsLog | None:
        if self._engine.rank:
            return None
        return MetricsLog(self._folder / "metrics.jsonl", last_step=last_step)

    def resume_from(self, last_step: int) -> None:
        """Drop what the file holds beyond `last_step`; it will be done again."""
        self._last_step = last_step
        self._file = self._open(last_step)

    def recorded_at(self, step: int) -> set[str]:
        """Return which kinds of records the file held for a step when this start began."""
        earlier = self._file.earlier if self._file else []
        return {record["kind"] for record in earlier if record["step"] == step}

    def after_step(self, progress: Progress, numbers: Sequence[float]) -> None:
        """Report a step that `Health` has judged; one that is undone is not kept."""
        self._last_step = progress.step
        if progress.was_skipped:
            self._report_skipped(progress)
        elif progress.verdict != "roll_back":
            self._report_trained(progress)

    def _report_trained(self, progress: Progress) -> None:
        self._forget_summary()
        tokens_per_s = self._plan.tokens_per_step / progress.seconds
        record = {
            "kind": "train",
            "step": progress.step,
            "loss": progress.loss,
            "grad_norm": progress.grad_norm,
            "lr": progress.lr,
            "tokens": progress.step * self._plan.tokens_per_step,
            "tokens_per_s": tokens_per_s,
            "step_s": progress.seconds,
            "peak_memory_bytes": self.memory.bytes,
            "skipped": progress.overflows,
            **self.memory.beyond_allocated(),
        }
        self._loss = progress.loss
        if progress.done > 1:
            self._rates.append(tokens_per_s)
        recent = median(self._rates[-_RECENT:]) if self._rates else None
        is_due = self._line.is_due(progress.step)
        self.report(record, self._line.write(record, tokens_per_s=recent) if is_due else "")
        if progress.verdict == "spike":
            self.log(
                f"warning: step {progress.step}: the loss {progress.loss:.4f} is far above those "
                "before it"
            )

    def _report_skipped(self, progress: Progress) -> None:
        self._forget_summary()
        self._write({"kind": "left_out", "step": progress.step})
        numbers = f"the loss is {progress.loss} and the gradient norm {progress.grad_norm}"
        self.log(
            f"step {progress.step:>5}/{self._line.steps} | skipped: {numbers}; "
            "the parameters are as they were"
        )

    def report(self, record: dict[str, Any], line: str) -> None:
        """Write a record, hand its numbers to the trackers and log its line, if it has one."""
        self._write(record)
        prefix = f"{record['kind']}/"
        values = {prefix + k: v for k, v in record.items() if isinstance(v, int | float)}
        self._engine.accelerator.log(values, step=record["step"])
        if record["kind"] == "sample":
            log_sample(self._engine.accelerator, record["text"], step=record["step"])
        if line:
            self.log(line)

    def _write(self, record: dict[str, Any]) -> None:
        if self._file is None:
            return
        if self._file.drops:
            self._forget_summary()
        self._file.write(record)

    def _forget_summary(self) -> None:
        """Leave the summary as long as it describes the run, and no longer."""
        if self._has_summary and self._engine.rank == 0:
            forget_summary(self._folder)
            self._has_summary = False

    def complete(self, summary: Summary) -> None:
        """Put the figures of the run into its summary; steps that failed are not in them."""
        summary.steps = self._last_step
        summary.final_loss = self._loss
        summary.tokens_per_s = median(self._rates) if self._rates else None
        summary.peak_memory_bytes = self.memory.bytes or self._earlier_peak
        summary.step_s = self.times.step_s
        summary.step_parts_s = self.times.parts
        summary.predicted_step_s = self.times.predicted_s
