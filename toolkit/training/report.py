"""Where a run's numbers go: `metrics.jsonl`, trackers, the console, and the summary's figures."""

from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

import torch

from toolkit.engines.engine import Engine
from toolkit.model.flops import utilisation
from toolkit.training.build import Run
from toolkit.training.metrics import MetricsLog, TrainLine
from toolkit.training.run_folder import forget_summary

_RECENT = 100
"""Steps whose speed tells how long the others will take."""


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


class RunReport:
    """What one run tells of its steps; only rank 0 writes and prints.

    Args:
        engine: whose rank this is; its accelerator has the trackers.
        folder: the run folder.
        say: prints a line on rank 0 and does nothing elsewhere.
        line: the console's, of a step.
        last_step: updates it carries on from; what the log holds beyond is dropped.

    Attributes:
        loss: of the last step that was trained on.
        earlier_peak_bytes: what was measured before this start.
    """

    def __init__(
        self,
        engine: Engine,
        folder: Path,
        say: Callable[[str], None],
        *,
        line: TrainLine,
        last_step: int,
    ) -> None:
        self.say = say
        self.line = line
        self._engine = engine
        self._folder = folder
        self._has_summary = True
        self._log = self._open(last_step)
        earlier = [r for r in self._log.earlier if r["kind"] == "train"] if self._log else []
        self.loss: float | None = earlier[-1]["loss"] if earlier else None
        self.earlier_peak_bytes: int | None = earlier[-1]["peak_memory_bytes"] if earlier else None
        # The first step of a start is watched, and so not timed.
        self._rates: list[float] = [record["tokens_per_s"] for record in earlier[1:]]

    def resume_from(self, last_step: int) -> None:
        """Drop what the log holds beyond `last_step`; it will be done again."""
        self._log = self._open(last_step)

    def _open(self, last_step: int) -> MetricsLog | None:
        if self._engine.rank:
            return None
        return MetricsLog(self._folder / "metrics.jsonl", last_step=last_step)

    def _move_on(self) -> None:
        """Leave the summary as long as it describes the run, and no longer."""
        if self._has_summary and self._engine.rank == 0:
            forget_summary(self._folder)
            self._has_summary = False

    def recorded_at(self, step: int) -> set[str]:
        """Return which kinds of records the log held for a step when this start began."""
        earlier = self._log.earlier if self._log else []
        return {record["kind"] for record in earlier if record["step"] == step}

    def trained(self, record: dict[str, Any], *, timed: bool) -> None:
        """Tell of a step, `timed` unless it was the first of a start."""
        self._move_on()
        self.loss = record["loss"]
        if timed:
            self._rates.append(record["tokens_per_s"])
        recent = median(self._rates[-_RECENT:]) if self._rates else None
        is_due = self.line.is_due(record["step"])
        self.tell(record, self.line.write(record, tokens_per_s=recent) if is_due else "")

    def left_out(self, step: int, *, loss: float, grad_norm: float) -> None:
        """Tell of a step without an update."""
        self._move_on()
        self._write({"kind": "left_out", "step": step})
        self.say(
            f"step {step:>5}/{self.line.steps} | left out: the loss is {loss} and "
            f"the gradient norm {grad_norm}; the parameters are as they were"
        )

    def tell(self, record: dict[str, Any], line: str) -> None:
        """Write a record, hand its numbers to the trackers and print its line, if it has one."""
        self._write(record)
        prefix = f"{record['kind']}/"
        values = {prefix + k: v for k, v in record.items() if isinstance(v, int | float)}
        self._engine.accelerator.log(values, step=record["step"])
        if line:
            self.say(line)

    def _write(self, record: dict[str, Any]) -> None:
        if self._log is None:
            return
        if self._log.drops:
            self._move_on()
        self._log.write(record)

    @property
    def tokens_per_s(self) -> float | None:
        """Median over the timed steps."""
        return median(self._rates) if self._rates else None
