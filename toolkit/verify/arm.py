"""One launched process of an arm: run each case in turn and leave what it did as files.

Started by `accelerate launch` with a shipped launch file, like any run; one launch serves all cases
of a strategy, for starting processes takes longer than training them.
"""

import json
import os
import signal
import sys
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from datetime import timedelta
from pathlib import Path
from typing import Any, NamedTuple

import torch
import torch.distributed as dist

from toolkit.data.order import micro_batch_slots
from toolkit.engines.accelerate_internals import forget_engine
from toolkit.engines.build import build_engine
from toolkit.engines.collectives import CollectiveCounter
from toolkit.engines.effective import check_effective, check_first_step
from toolkit.engines.engine import Engine
from toolkit.engines.launched import Launched, read_launch
from toolkit.engines.process_group import lift_time_limits, start_process_group
from toolkit.engines.replicas import replica_problems
from toolkit.engines.traffic import KINDS, Reductions
from toolkit.errors import ToolkitError
from toolkit.launch.ownership import follow
from toolkit.model.gpt2 import GPT2
from toolkit.model.sizes import ModelSizes
from toolkit.program.readers.traffic import read_reductions
from toolkit.program.step import write_step
from toolkit.training.build import TIED
from toolkit.training.optimizer import build_optimizer
from toolkit.training.schedule import lr_at
from toolkit.training.step import MicroBatch, train_step
from toolkit.training.worker import end_process
from toolkit.verify.cases import Case, global_batch
from toolkit.verify.controls import CONTROLS, Break, break_nothing
from toolkit.verify.outcome import Outcome, write_outcome
from toolkit.verify.reference import Trajectory


def main(order_file: Path) -> None:
    """Run the cases and controls of an order file, which also says where the results go."""
    order = json.loads(order_file.read_text())
    sizes = ModelSizes(**order["sizes"])
    launched = read_launch(os.environ)
    start_process_group(launched, timeout=timedelta(seconds=order["timeout_s"]))
    lift_time_limits()  # the owner ends it all after as long
    results = Path(order["results"])
    for number, fields in enumerate(order["cases"]):
        _write(results / f"case_{number:03d}", run_case(Case(**fields), sizes, launched), launched)
    for number, name in enumerate(order["controls"]):
        control = next(control for control in CONTROLS if control.name == name)
        stem = results / f"control_{number:03d}"
        try:
            outcome = run_case(control.case, sizes, launched, break_it=control.break_it)
        except ToolkitError as error:
            stem.with_suffix(".refused").write_text(str(error))
        else:
            _write(stem, outcome, launched)
    if dist.is_initialized():
        # Left to the interpreter's end, gloo's threads now and then abort the process.
        dist.destroy_process_group()


def _write(stem: Path, outcome: Outcome, launched: Launched) -> None:
    if launched.rank == 0:
        write_outcome(stem, outcome)


def run_case(
    case: Case, sizes: ModelSizes, launched: Launched, *, break_it: Break = break_nothing
) -> Outcome:
    """Train for a few steps under the launched strategy, with every safeguard of a run in place.

    Args:
        case: what to do.
        sizes: the model, but for what the case itself says of it.
        launched: the strategy and this process's place in it.
        break_it: what to put out of order in the engine before it is checked.
    """
    engine = build_case(case, sizes, launched, break_it=break_it)
    gradients = _capture_gradients(engine)
    counter = CollectiveCounter()
    losses, grad_norms = [], []
    for step in range(case.steps):
        torch.manual_seed(case.seed + 1000 * step + launched.rank)
        micro_batches = own_micro_batches(case, sizes, engine, step)
        lr = lr_at(step, case.optimizer_config(), steps=case.steps)
        with watch_held_gradients(engine) as held, _watch(engine, case, sizes, step, counter):
            result = train_step(engine, micro_batches, lr=lr)
        losses.append(engine.ranks.sum(result.loss_share).item())
        grad_norms.append(float(result.grad_norm))
    parameters = {
        name: engine.state.full_parameter(p).clone() for name, p in engine.module.named_parameters()
    }
    return Outcome(
        Trajectory(losses, grad_norms, gradients, parameters),
        # Scalars and vectors of norms are the loop's and the engines' own bookkeeping.
        {kind: counter.traffic(kind, above=len(parameters) + 1) for kind in KINDS},
        held_gradient_bytes=most_held(engine, held),
        held_gradient_dtypes=sorted({str(dtype) for at in held for dtype in at.dtypes}),
        replica_groups=len(engine.state.replica_groups()),
        replica_problems=replica_problems(engine),
    )


def _watch(
    engine: Engine, case: Case, sizes: ModelSizes, step: int, counter: CollectiveCounter
) -> AbstractContextManager[Any]:
    """The first step is checked; the last is counted, when engines have settled their buckets."""
    if step == 0:
        return check_first_step(engine, reductions_of(case, sizes, engine.launched))
    return counter if step == case.steps - 1 else nullcontext()


def reductions_of(case: Case, sizes: ModelSizes, launched: Launched) -> Reductions:
    """Return when a case's first step should reduce gradients."""
    settings = case.step_settings(
        0,
        sizes,
        launched.strategy,
        world_size=launched.world_size,
        replicas=launched.replicas,
    )
    return read_reductions(write_step(settings))


def build_case(
    case: Case, sizes: ModelSizes, launched: Launched, *, break_it: Break = break_nothing
) -> Engine:
    """Build the engine of a case, in a process that may have run others before.

    Raises:
        UsageError: what was asked is not effective.
    """
    forget_engine()
    torch.manual_seed(case.seed)
    sizes = case.model(sizes)
    model = GPT2(
        sizes,
        dropout=case.dropout,
        activation_checkpointing=case.activation_checkpointing,
        loss=case.loss,
    )
    if case.compile:
        model.compile_blocks()
    engine = build_engine(
        model,
        build_optimizer(model, case.optimizer_config()),
        launched=launched,
        plan=case.plan(launched.world_size, seq_len=sizes.block_size),
        accumulation=case.accumulation,
        precision=case.precision,
        grad_clip=case.grad_clip,
    )
    break_it(engine, case)
    check_effective(engine, precision=case.precision, tied=TIED)
    return engine


def own_micro_batches(case: Case, sizes: ModelSizes, engine: Engine, step: int) -> list[MicroBatch]:
    """Return this rank's part of the global batch, cut as a run's data is."""
    inputs, targets = global_batch(step, case, case.model(sizes))
    plan = case.plan(engine.world_size, seq_len=sizes.block_size)
    slots = [
        micro_batch_slots(
            micro_step,
            micro_batch_size=plan.micro_batch_size,
            world_size=engine.world_size,
            rank=engine.rank,
        )
        for micro_step in range(case.micro_steps(step))
    ]
    return [(inputs[s].to(engine.device), targets[s].to(engine.device)) for s in slots]


def _capture_gradients(engine: Engine) -> dict[str, torch.Tensor]:
    """Return a dictionary that the first update fills with the averaged, unclipped gradients."""
    captured: dict[str, torch.Tensor] = {}
    clip_and_step = engine.clip_and_step

    def capture_then_step() -> torch.Tensor:
        if not captured:
            for name, parameter in engine.module.named_parameters():
                captured[name] = engine.state.full_gradient(parameter).detach().clone()
        return clip_and_step()

    engine.clip_and_step = capture_then_step  # type: ignore[method-assign]
    return captured


class HeldGradients(NamedTuple):
    """What a rank holds between two micro-steps: bytes of whole storages, and their dtypes."""

    bytes: int
    dtypes: set[torch.dtype]


@contextmanager
def watch_held_gradients(engine: Engine) -> Iterator[list[HeldGradients]]:
    """Give a list that grows before every micro-step but the first of each step in the block.

    A storage counts once, however many views of it there are.
    """
    held: list[HeldGradients] = []
    accumulate = engine.accumulate

    def watch(micro_batches: Sequence[Any]) -> Iterator[Any]:
        for micro_step, micro_batch in enumerate(accumulate(micro_batches)):
            if micro_step:
                gradients = list(engine.state.held_gradients())
                storages = [gradient.untyped_storage() for gradient in gradients]
                sizes = {storage.data_ptr(): storage.nbytes() for storage in storages}
                dtypes = {gradient.dtype for gradient in gradients}
                held.append(HeldGradients(sum(sizes.values()), dtypes))
            yield micro_batch

    engine.accumulate = watch  # type: ignore[method-assign]
    try:
        yield held
    finally:
        engine.accumulate = accumulate  # type: ignore[method-assign]


def most_held(engine: Engine, held: Sequence[HeldGradients]) -> int | None:
    """Return the most bytes that any rank held, or None without any; a collective."""
    if not held:
        return None
    own = max(at.bytes for at in held)
    return int(engine.ranks.max(torch.tensor(own, device=engine.device)))


if __name__ == "__main__":
    follow(signal.SIGKILL)
    main(Path(sys.argv[1]))
    end_process(0)
