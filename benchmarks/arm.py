"""One launched process of an arm: prove that the arm computes the right update, then time it.

Started by `accelerate launch` with a shipped launch file, like any run. Each process builds its
engine, connects to the driver and waits, blocked in a read, so that a group that is not being
measured takes no processor time. The driver going away ends it.
"""

import os
import shutil
import sys
import time
from contextlib import suppress
from datetime import timedelta
from itertools import pairwise
from multiprocessing.connection import Client, Connection
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from pydantic import BaseModel

from benchmarks.batches import build_batches, on_device
from benchmarks.record import Agreement, Arm, Bounds, ExpectedTraffic, Traffic
from benchmarks.reference import SEED, reference_step
from benchmarks.split import measure_split
from toolkit.backends.build import build_engine
from toolkit.backends.collectives import KINDS, CollectiveCounter
from toolkit.backends.communication import Expected, Range, expected_collectives
from toolkit.backends.engine import Engine
from toolkit.backends.held_gradients import held_gradient_bytes
from toolkit.backends.in_force import check_in_force
from toolkit.backends.launched import Launched, read_launch
from toolkit.backends.process_group import start_process_group
from toolkit.batching import plan_batch
from toolkit.config import OptimizerConfig
from toolkit.errors import NonFiniteError, ToolkitError
from toolkit.memory.allocator import measure_peak
from toolkit.model.gpt2 import GPT2
from toolkit.training.build import TIED, check_compiler
from toolkit.training.optimizer import build_optimizer
from toolkit.training.step import MicroBatch, StepResult, train_step
from toolkit.verify.arm import most_held, watch_held_gradients
from toolkit.verify.verdict import traffic_problems

FIRST_TOKENS = 256
"""Of each sequence in the first step, which the reference computes in fp64 on one rank."""
LR = 1e-4
GRAD_CLIP = 1.0
MOST_OVERFLOWS = 20
"""fp16 updates left out before giving up; the loss scale halves each time, 65,536 to 1 in 16."""


class Order(BaseModel):
    """What a process is to do.

    Attributes:
        shards: prepared data, where the arm trains on real data.
        warm_up_steps: before each repeat.
        split_steps: instrumented ones.
        timeout_s: of a collective.
        address: the driver's socket.
    """

    arm: Arm
    shards: list[str]
    warm_up_steps: int
    split_steps: int
    timeout_s: float
    address: str


class DisagreementError(ToolkitError):
    """The arm does not compute, communicate or hold what it should; its time means nothing."""


class ArmRun:
    """An engine around a model, and what is measured of it on this rank."""

    def __init__(self, order: Order, launched: Launched) -> None:
        self.order = order
        self.arm = arm = order.arm
        device = start_process_group(launched, timeout=timedelta(seconds=order.timeout_s))
        first = build_batches(arm, micro_batch_size=1, rank=launched.rank, shards=order.shards)
        self.reference = None
        if launched.rank == 0:
            inputs, targets = _shorten(on_device([first.dataset.sequences(first.ids(0))], device))[
                0
            ]
            self.reference = reference_step(arm, inputs, targets)
        self.engine = _build_engine(arm, launched)
        self.first_batch = _shorten(on_device(first.micro_batches(0), device))
        self.batches = build_batches(
            arm, micro_batch_size=arm.micro_batch_size, rank=launched.rank, shards=order.shards
        )
        self.steps_done = 0
        self.drawn = self._read() if arm.data == "synthetic" else None

    def prove(self) -> dict[str, Any]:
        """Compare the first step with the reference, and counts with the formulas.

        Returns:
            Fields of a `Record`.

        Raises:
            DisagreementError: says what is not as it should be.
        """
        agreement = self._first_step()
        # The second holds most: what engines set up again after the first lies beside the rest.
        with measure_peak(self.engine.device) as peak:
            self._step()
        with watch_held_gradients(self.engine) as held, CollectiveCounter() as counter:
            self._step()
        fullest = self.engine.max_over_ranks(torch.tensor(peak.bytes, device=self.engine.device))
        # Scalars and vectors of norms are the loop's and the engines' own bookkeeping.
        above = len(list(self.engine.named_parameters())) + 1
        traffic = {kind: counter.traffic(kind, above=above) for kind in KINDS}
        expected = _expected_collectives(self.arm, self.engine.launched)
        held_bytes = most_held(self.engine, held)
        expected_held = _expected_held(self.arm, self.engine.launched)
        problems = list(traffic_problems(traffic, expected))
        if held_bytes != expected_held:
            problems.append(f"{held_bytes} bytes of gradients held, not {expected_held}")
        if problems:
            raise DisagreementError("not what the formulas say: " + "; ".join(problems))
        kinds = [kind for kind in KINDS if kind != "other"]
        return {
            "agreement": agreement,
            "collectives": {
                kind: Traffic(calls=traffic[kind].calls, bytes=traffic[kind].bytes)
                for kind in kinds
            },
            "expected_collectives": {kind: _as_record(expected[kind]) for kind in kinds},
            "gradient_bytes_held": held_bytes,
            "expected_gradient_bytes_held": expected_held,
            "peak_memory_bytes": int(fullest),
            "split": measure_split(self.engine, self._step, steps=self.order.split_steps),
        }

    def repeat(self, steps: int) -> list[float]:
        """Return the seconds of each of some steps, after a warm-up; ranks begin and end as one.

        Nothing watches. On real data reading it is part of a step, as in a run.

        Raises:
            NonFiniteError: the last update was left out, so it was not a whole step.
        """
        for _ in range(self.order.warm_up_steps):
            self._step()
        self._meet()
        marks = [time.perf_counter()]
        for step in range(steps):
            self._step()
            if step == steps - 1:
                self._meet()
            self._synchronise()
            marks.append(time.perf_counter())
        if self.engine.step_was_skipped:
            raise NonFiniteError("the last timed update was left out: its gradient is not finite")
        return [after - before for before, after in pairwise(marks)]

    def _step(self) -> StepResult:
        return train_step(self.engine, self.drawn or self._read(), lr=LR)

    def _read(self) -> list[MicroBatch]:
        batches = self.batches.micro_batches(self.steps_done)
        self.steps_done += 1
        return on_device(batches, self.engine.device)

    def _meet(self) -> None:
        self._synchronise()
        if dist.is_initialized():
            dist.barrier()

    def _synchronise(self) -> None:
        if self.engine.device.type == "cuda":
            torch.cuda.synchronize(self.engine.device)

    def _first_step(self) -> Agreement | None:
        """Train once from micro-batches of one short sequence each, as the reference does.

        Raises:
            DisagreementError: loss or gradient norm are further away than rounding explains.
        """
        for _ in range(MOST_OVERFLOWS):
            result = train_step(self.engine, self.first_batch, lr=LR)
            if self.arm.precision != "fp16" or not self.engine.step_was_skipped:
                break
        self.first_batch = []
        if self.arm.compile:
            # Having seen two shapes, it would compile for any, which is slower than for one.
            torch._dynamo.reset()
        if self.reference is None:
            return None
        return agree(result, self.reference)


def _shorten(batches: list[MicroBatch]) -> list[MicroBatch]:
    return [
        (inputs[:, :FIRST_TOKENS].contiguous(), targets[:, :FIRST_TOKENS].contiguous())
        for inputs, targets in batches
    ]


def agree(result: StepResult, reference: tuple[float, float, float]) -> Agreement:
    """Compare a step with the reference's loss, gradient norm and tolerance.

    Raises:
        DisagreementError: they differ by more than rounding explains.
    """
    loss, grad_norm, tolerance = reference
    found = {"loss": float(result.loss), "grad_norm": float(result.grad_norm)}
    for name, right in (("loss", loss), ("grad_norm", grad_norm)):
        distance = abs(found[name] / right - 1)
        if not distance <= tolerance:
            raise DisagreementError(
                f"{name} of the first step is {found[name]:.8g}, but plain PyTorch computes "
                f"{right:.8g}: {distance:.1e} apart, where rounding explains {tolerance:.1e}"
            )
    return Agreement(
        **found, reference_loss=loss, reference_grad_norm=grad_norm, tolerance=tolerance, ok=True
    )


def _build_engine(arm: Arm, launched: Launched) -> Engine:
    if arm.compile:
        check_compiler()
    torch.manual_seed(SEED)
    model = GPT2(
        arm.model.model_sizes(),
        activation_checkpointing=arm.activation_checkpointing,
        loss=arm.loss,
    )
    if arm.compile:
        model.compile_blocks()
    from accelerate import PartialState

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
        sizes=arm.model.model_sizes(),
        accumulation=arm.accumulation,
        precision=arm.precision,
        grad_clip=GRAD_CLIP,
    )
    check_in_force(engine, precision=arm.precision, tied=TIED)
    return engine


def _expected_collectives(arm: Arm, launched: Launched) -> dict[str, Expected]:
    return expected_collectives(
        arm.strategy,
        arm.accumulation,
        sizes=arm.model.model_sizes(),
        grad_accum_steps=arm.grad_accum_steps,
        precision=arm.precision,
        world_size=launched.world_size,
        replicas=launched.replicas,
    )


def _expected_held(arm: Arm, launched: Launched) -> int | None:
    if arm.grad_accum_steps == 1:
        return None
    return held_gradient_bytes(
        arm.strategy,
        arm.accumulation,
        precision=arm.precision,
        sizes=arm.model.model_sizes(),
        world_size=launched.world_size,
        replicas=launched.replicas,
    )


def _as_record(expected: Expected) -> ExpectedTraffic:
    return ExpectedTraffic(calls=_bounds(expected.calls), bytes=_bounds(expected.bytes))


def _bounds(count: Range) -> int | Bounds:
    if count.at_least == count.at_most:
        return count.at_least
    return Bounds(low=count.at_least, high=count.at_most)


def serve(order: Order, driver: Connection) -> None:
    """Do what the driver asks for until it asks for no more."""
    run = ArmRun(order, read_launch(os.environ))
    driver.send((None, run.engine.rank))
    while (command := driver.recv()) is not None:
        name, arguments = command
        driver.send((None, run.prove() if name == "prove" else run.repeat(*arguments)))
    if dist.is_initialized():
        # Left to the interpreter's end, gloo's threads now and then abort the process.
        dist.destroy_process_group()


def main(order_file: Path) -> None:
    """Serve the driver of an order file, and let it know of any failure in a sentence."""
    order = Order.model_validate_json(order_file.read_text())
    with Client(order.address, family="AF_UNIX") as driver:
        try:
            serve(order, driver)
        except (EOFError, BrokenPipeError):
            # The driver is gone, and nobody else is left to clear up after it.
            shutil.rmtree(order_file.parent, ignore_errors=True)
        except Exception as error:
            with suppress(OSError):
                driver.send((_sentence(error), None))
            raise


def _sentence(error: Exception) -> str:
    said = (str(error).strip().splitlines() or ["no message"])[0]
    return said if isinstance(error, ToolkitError) else f"{type(error).__name__}: {said}"


if __name__ == "__main__":
    main(Path(sys.argv[1]))
