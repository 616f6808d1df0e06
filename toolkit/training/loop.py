"""The loop: steps, with evaluation, samples and checkpoints between them."""

import math
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import torch

from toolkit.backends.in_force import check_first_step
from toolkit.checkpoint.state import read_state, write_state
from toolkit.checkpoint.store import CheckpointStore, Position, read_position
from toolkit.data.batches import eval_batches
from toolkit.data.vocabulary import END_OF_TEXT, build_vocabulary
from toolkit.errors import NonFiniteError, UsageError
from toolkit.memory.advice import comparison_after, estimate_run
from toolkit.memory.allocator import MeasuredPeak, measure_peak
from toolkit.model.sizes import GPT2_VOCAB_SIZE
from toolkit.training.build import Run
from toolkit.training.evaluate import evaluate
from toolkit.training.metrics import MetricsLog, eval_line, train_line
from toolkit.training.sample import sample_tokens
from toolkit.training.schedule import lr_at
from toolkit.training.step import MicroBatch, StepResult, train_step

MAX_SKIPPED_IN_A_ROW = 20
"""fp16 updates left out before giving up; the loss scale halves each time, 65,536 to 1 in 16."""


class Loop:
    """One start of a run, from the newest checkpoint in its folder to its last step.

    Args:
        run: what `build_run` returned.
        folder: the run folder.
        say: prints a line on rank 0 and does nothing elsewhere.
    """

    def __init__(self, run: Run, folder: Path, say: Callable[[str], None]) -> None:
        self.run = run
        self.config = run.config
        self.engine = run.engine
        self.say = say
        self.store = CheckpointStore(folder / "checkpoints")
        self.step = self._resume()
        self.log = MetricsLog(folder / "metrics.jsonl", last_step=self.step) if self.leads else None
        earlier = [r for r in self.log.earlier if r["kind"] == "train"] if self.log else []
        self.loss: float | None = earlier[-1]["loss"] if earlier else None
        self.peak_memory_bytes: int | None = None
        self.last_peak: MeasuredPeak | None = None
        self.estimate = estimate_run(
            self.config, self.engine.launched, device_type=self.engine.device.type
        )
        self.rates: list[float] = [record["tokens_per_s"] for record in earlier[1:]]

    @property
    def leads(self) -> bool:
        """Whether this rank writes and prints."""
        return self.engine.rank == 0

    def fit(self) -> None:
        """Train from where the run is to `training.stop_at`, or to its end.

        Raises:
            NonFiniteError: the loss or the gradient norm is not a number.
        """
        training = self.config.training
        last = training.stop_at or training.steps
        if self.step >= last:
            self.say(f"nothing to do: {self.step} of {last} steps are done")
        first = self.step
        while self.step < last:
            done = self.step - first
            with self._watch() if done == 0 else nullcontext():
                self._train_once(timed=done > 0, measured=done > 0 and self._can_measure(done))
            if _due(self.step, training.eval_every, last):
                self._evaluate()
            if _due(self.step, training.checkpoint_every, last):
                self._save()
        if self.peak_memory_bytes:
            self.say(comparison_after(self.estimate, self.peak_memory_bytes))
        if self.leads and self.last_peak is not None:
            self.last_peak.keep_calibration()

    def _watch(self) -> AbstractContextManager[None]:
        return check_first_step(self.engine, grad_accum_steps=self.run.plan.grad_accum_steps)

    def _can_measure(self, done: int) -> bool:
        """A GPU's allocator counts at no cost; a CPU's only in one profiled step, the second."""
        return self.engine.device.type == "cuda" or done == 1

    def _train_once(self, *, timed: bool, measured: bool) -> None:
        started = time.perf_counter()
        _seed_dropout(self.config.seed, self.step, self.engine.rank)
        micro_batches = [
            self._on_device(batch) for batch in self.run.batches.micro_batches(self.step)
        ]
        lr = lr_at(self.step, self.config.optimizer, steps=self.config.training.steps)
        with measure_peak(self.engine.device) if measured else nullcontext() as peak:
            result, skipped = self._update(micro_batches, lr)
        loss, grad_norm = result.loss.item(), float(result.grad_norm)
        self.step += 1
        self._require_finite(loss=loss, grad_norm=grad_norm)
        step_s = time.perf_counter() - started
        if peak is not None:
            self._keep_peak(peak)
        on_device = peak.on_device() if peak is not None else {}
        self.loss = loss
        tokens_per_s = self.run.plan.tokens_per_step / step_s
        if timed:
            self.rates.append(tokens_per_s)
        record = {
            "kind": "train",
            "step": self.step,
            "loss": loss,
            "grad_norm": grad_norm,
            "lr": lr,
            "tokens": self.tokens,
            "tokens_per_s": tokens_per_s,
            "step_s": step_s,
            "peak_memory_bytes": self.peak_memory_bytes,
            "skipped": skipped,
            **on_device,
        }
        self._report(record, train_line(record, steps=self.config.training.steps))

    def _keep_peak(self, peak: MeasuredPeak) -> None:
        """Keep the largest step of the fullest rank."""
        self.last_peak = peak
        found = torch.tensor(peak.bytes, device=self.engine.device)
        self.peak_memory_bytes = max(
            self.peak_memory_bytes or 0, int(self.engine.max_over_ranks(found))
        )

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

    def _require_finite(self, *, loss: float, grad_norm: float) -> None:
        if not (math.isfinite(loss) and math.isfinite(grad_norm)):
            raise NonFiniteError(
                f"step {self.step}: the loss is {loss} and the gradient norm {grad_norm}; "
                "nothing was saved after this step"
            )

    @property
    def tokens(self) -> int:
        """Tokens trained on so far."""
        return self.step * self.run.plan.tokens_per_step

    def _on_device(self, batch: tuple[np.ndarray, np.ndarray]) -> MicroBatch:
        tokens, targets = (torch.from_numpy(part).to(self.engine.device) for part in batch)
        return tokens, targets

    def _report(self, record: dict[str, Any], line: str) -> None:
        if self.log is not None:
            self.log.write(record)
        prefix = f"{record['kind']}/"
        values = {prefix + k: v for k, v in record.items() if isinstance(v, int | float)}
        self.engine.accelerator.log(values, step=self.step)
        self.say(line)

    def _evaluate(self) -> None:
        if self.run.val is not None:
            batches = eval_batches(
                self.run.val,
                micro_batch_size=self.run.plan.micro_batch_size,
                world_size=self.engine.world_size,
                rank=self.engine.rank,
                max_sequences=self.config.training.eval_sequences,
            )
            found = evaluate(self.engine, batches)
            record = {"kind": "eval", "step": self.step, **asdict(found)}
            self._report(record, eval_line(record, steps=self.config.training.steps))
        if self.config.training.sample_tokens:
            text = self._sample()
            record = {"kind": "sample", "step": self.step, "text": text}
            self._report(record, f"sample {self.step:>5} | {text!r}")

    def _sample(self) -> str:
        tokens = sample_tokens(
            self.engine,
            start=min(END_OF_TEXT, self.config.model.vocab_size - 1),
            length=self.config.training.sample_tokens,
            block_size=self.config.model.block_size,
            seed=self.config.seed,
        )
        return build_vocabulary().decode([token for token in tokens if token < GPT2_VOCAB_SIZE])

    def _save(self) -> None:
        started = time.perf_counter()
        partial = self.store.begin(self.step) if self.leads else self.store.folder
        write_state(self.engine, partial, with_moments=self._has_moments)
        if self.leads:
            final = self.store.commit(
                partial, self._position(), keep_last=self.config.training.keep_last
            )
            self.say(f"saved {final} in {time.perf_counter() - started:.1f} s")
        self.engine.wait_for_everyone()

    @property
    def _has_moments(self) -> bool:
        return self.config.optimizer.name == "adamw"

    def _position(self) -> Position:
        return Position(
            step=self.step,
            tokens=self.tokens,
            seed=self.config.seed,
            strategy=self.engine.launched.strategy,
            world_size=self.engine.world_size,
            model=asdict(self.config.model.sizes()),
            optimizer=self.config.optimizer.name,
        )

    def _resume(self) -> int:
        """Load the newest good checkpoint, if there is any; return the steps behind it."""
        checkpoint, problems = self.store.newest_good()
        for problem in problems:
            self.say(f"passed over: {problem}")
        if checkpoint is None:
            return 0
        found = read_position(checkpoint)
        self._require_same_run(checkpoint, found)
        read_state(self.engine, checkpoint, with_moments=self._has_moments, steps=found.step)
        self.say(f"carrying on from {checkpoint} after {found.step} steps")
        return found.step

    def _require_same_run(self, checkpoint: Path, found: Position) -> None:
        asked = {
            "model": asdict(self.config.model.sizes()),
            "optimizer": self.config.optimizer.name,
            "seed": self.config.seed,
            "tokens": found.step * self.run.plan.tokens_per_step,
        }
        for key, value in asked.items():
            if getattr(found, key) != value:
                raise UsageError(
                    f"{checkpoint} has {key} {getattr(found, key)}, the configuration means "
                    f"{value}; choose another run_name to start afresh"
                )

    def figures(self) -> dict[str, Any]:
        """Return what the summary says of the run; the first, watched step is not timed."""
        return {
            "steps": self.step,
            "final_loss": self.loss,
            "tokens_per_s": median(self.rates) if self.rates else None,
            "peak_memory_bytes": self.peak_memory_bytes,
            "estimated_peak_memory_bytes": self.estimate.total,
        }


def _due(step: int, every: int, last: int) -> bool:
    return every > 0 and (step % every == 0 or step == last)


def _seed_dropout(seed: int, step: int, rank: int) -> None:
    """Make dropout a function of (seed, step, rank): carrying on needs no generator state."""
    torch.manual_seed(int(np.random.SeedSequence([seed, step, rank]).generate_state(1)[0]))
