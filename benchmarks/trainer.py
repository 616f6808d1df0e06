"""An arm's engine and data on one rank, and the steps that are timed."""

import time
from collections.abc import Sequence
from itertools import pairwise

import torch
import torch.distributed as dist

from benchmarks.batches import build_batches, on_device
from benchmarks.record import Arm
from benchmarks.reference import SEED
from toolkit.batching import plan_batch
from toolkit.config import OptimizerConfig
from toolkit.engines.build import build_engine
from toolkit.engines.effective import check_effective
from toolkit.engines.engine import Engine
from toolkit.engines.launched import Launched
from toolkit.errors import NonFiniteError
from toolkit.model.gpt2 import GPT2
from toolkit.training.build import TIED, check_compiler
from toolkit.training.optimizer import build_optimizer
from toolkit.training.step import MicroBatch, StepResult, train_step

LR = 1e-4
GRAD_CLIP = 1.0


class ArmTrainer:
    """Trains with the toolkit's own step, from random tokens drawn once or from real data.

    `start_process_group` must have run.

    Raises:
        UsageError: shards are missing or too few, or what was asked is not in force.
        UntrustedError: shards are damaged.
    """

    def __init__(self, arm: Arm, launched: Launched, *, shards: Sequence[str]) -> None:
        self.arm = arm
        self.launched = launched
        self.engine = build_arm_engine(arm, launched)
        self.batches = build_batches(
            arm, micro_batch_size=arm.micro_batch_size, rank=launched.rank, shards=shards
        )
        self.steps_done = 0
        self.drawn = self._read() if arm.data == "synthetic" else None

    def step(self) -> StepResult:
        """Update once; on real data reading it is part of a step, as in a run."""
        return train_step(self.engine, self.drawn or self._read(), lr=LR)

    def _read(self) -> list[MicroBatch]:
        batches = self.batches.micro_batches(self.steps_done)
        self.steps_done += 1
        return on_device(batches, self.engine.device)

    def time_steps(self, steps: int, *, warm_up: int) -> list[float]:
        """Return the seconds of each of some steps; all ranks begin and end as one.

        Raises:
            NonFiniteError: the last update was left out, so it was not a whole step.
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
            raise NonFiniteError("the last timed update was left out: its gradient is not finite")
        return [after - before for before, after in pairwise(marks)]

    def _meet(self) -> None:
        self._synchronise()
        if dist.is_initialized():
            dist.barrier()

    def _synchronise(self) -> None:
        if self.engine.device.type == "cuda":
            torch.cuda.synchronize(self.engine.device)


def build_arm_engine(arm: Arm, launched: Launched) -> Engine:
    """Build the model from the reference's seed, and the launched engine around it.

    Raises:
        UsageError: what was asked is not in force, or there is no compiler to compile with.
    """
    from accelerate import PartialState

    if arm.compile:
        check_compiler()
    torch.manual_seed(SEED)
    sizes = arm.model.model_sizes()
    model = GPT2(sizes, activation_checkpointing=arm.activation_checkpointing, loss=arm.loss)
    model.to(PartialState().device)
    optimizer = OptimizerConfig.model_validate({"name": arm.optimizer, "lr": LR})
    plan = plan_batch(
        tokens_per_step=arm.tokens_per_step,
        seq_len=arm.seq_len,
        micro_batch_size=arm.micro_batch_size,
        world_size=launched.world_size,
    )
    engine = build_engine(
        model,
        build_optimizer(model, optimizer),
        launched=launched,
        plan=plan,
        accumulation=arm.accumulation,
        precision=arm.precision,
        grad_clip=GRAD_CLIP,
        compile_blocks=arm.compile,
    )
    check_effective(engine, precision=arm.precision, tied=TIED)
    return engine
