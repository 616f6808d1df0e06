"""A case's engine and data on one rank, and the steps that are timed."""

import time
from collections.abc import Sequence
from itertools import pairwise

import torch
import torch.distributed as dist

from benchmarks.batches import build_batches, on_device
from benchmarks.fitting import settings_of
from benchmarks.record import Case
from benchmarks.reference import SEED
from toolkit.batching import plan_batch
from toolkit.config import OptimizerConfig
from toolkit.engines.build import build_engine
from toolkit.engines.effective import check_effective
from toolkit.engines.engine import Engine
from toolkit.engines.launched import Launched
from toolkit.errors import NonFiniteError
from toolkit.model.gpt2 import GPT2
from toolkit.program.settings import StepSettings
from toolkit.training.build import TIED, check_compiler
from toolkit.training.callback import Callback
from toolkit.training.optimizer import build_optimizer, use_foreach
from toolkit.training.step import MicroBatch, StepResult, train_step

LR = 1e-4
GRAD_CLIP = 1.0


class CaseTrainer:
    """Trains with the toolkit's own step, from random tokens drawn once or from real data.

    `start_process_group` must have run.

    Raises:
        UsageError: shards are missing or too few, or what was asked is not in effect.
        UntrustedError: shards are damaged.
    """

    def __init__(self, case: Case, launched: Launched, *, shards: Sequence[str]) -> None:
        self.case = case
        self.launched = launched
        self.engine = build_case_engine(case, launched)
        self.batches = build_batches(
            case, micro_batch_size=case.micro_batch_size, rank=launched.rank, shards=shards
        )
        self.steps_done = 0
        self.drawn = self._read() if case.data == "synthetic" else None

    def step(self, callbacks: Sequence[Callback] = ()) -> StepResult:
        """Update once; on real data reading it is part of a step, as in a run."""
        return train_step(self.engine, self.drawn or self._read(), lr=LR, callbacks=callbacks)

    def _read(self) -> list[MicroBatch]:
        batches = self.batches.micro_batches(self.steps_done)
        self.steps_done += 1
        return on_device(batches, self.engine.device)

    def time_steps(self, steps: int, *, warm_up: int) -> list[float]:
        """Return the seconds of each of some steps; all ranks begin and end as one.

        Raises:
            NonFiniteError: the last update was skipped, so it was not a whole step.
        """
        for _ in range(warm_up):
            self.step()
        self._meet()
        marks = [time.perf_counter()]
        for step in range(steps):
            self.step()
            if step == steps - 1:
                self._meet()
            self._synchronise()
            marks.append(time.perf_counter())
        if self.engine.step_was_skipped:
            raise NonFiniteError("the last timed update was skipped: its gradient is not finite")
        return [after - before for before, after in pairwise(marks)]

    def _meet(self) -> None:
        self._synchronise()
        if dist.is_initialized():
            dist.barrier()

    def _synchronise(self) -> None:
        if self.engine.device.type == "cuda":
            torch.cuda.synchronize(self.engine.device)


def build_case_engine(case: Case, launched: Launched) -> Engine:
    """Build a case's model from the reference's seed, and the launched engine around it.

    Raises:
        UsageError: what was asked is not in effect, or there is no compiler to compile with.
    """
    engine = build_from(settings_of(case, "cpu"), launched, seed=SEED, lr=LR)
    check_effective(engine, precision=case.precision, tied=TIED)
    return engine


def build_from(settings: StepSettings, launched: Launched, *, seed: int, lr: float) -> Engine:
    """Build the model, its optimizer and the launched engine around them from a step's settings.

    Raises:
        UsageError: there is no compiler to compile with.
    """
    from accelerate import PartialState

    torch.manual_seed(seed)
    model = GPT2(
        settings.sizes,
        dropout=settings.dropout,
        activation_checkpointing=settings.activation_checkpointing,
        loss=settings.loss,
    )
    if settings.compile:
        check_compiler()
    model.to(PartialState().device)
    config = OptimizerConfig.model_validate({"name": settings.optimizer, "lr": lr})
    optimizer = build_optimizer(model, config)
    if settings.foreach:
        use_foreach(optimizer)
    wave = settings.micro_batch_size * settings.seq_len * settings.world_size
    plan = plan_batch(
        tokens_per_step=wave * settings.grad_accum_steps,
        seq_len=settings.seq_len,
        micro_batch_size=settings.micro_batch_size,
        world_size=launched.world_size,
    )
    return build_engine(
        model,
        optimizer,
        launched=launched,
        plan=plan,
        accumulation=settings.accumulation,
        precision=settings.precision,
        grad_clip=GRAD_CLIP,
        reduce=settings.reduce,
        compile_blocks=settings.compile,
    )
