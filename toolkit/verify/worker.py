"""One process of a launch: run each case in turn and leave what was found as a file.

Started by `accelerate launch` with a shipped launch file, like any run; one launch serves all cases
of a strategy, for starting processes takes longer than training them.
"""

import os
import signal
import sys
from contextlib import AbstractContextManager, nullcontext
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
from accelerate import PartialState

from toolkit.data.order import micro_batch_slots
from toolkit.engines.accelerate_internals import forget_engine
from toolkit.engines.build import build_engine
from toolkit.engines.collectives import CollectiveCounter
from toolkit.engines.effective import check_effective, check_first_step
from toolkit.engines.engine import Engine
from toolkit.engines.launched import Launched, read_launch
from toolkit.engines.process_group import (
    leave_process_group,
    lift_time_limits,
    start_process_group,
)
from toolkit.engines.replicas import replica_problems
from toolkit.engines.traffic import KINDS, Reductions
from toolkit.errors import ToolkitError
from toolkit.launch.exit_code import end_process
from toolkit.launch.ownership import follow
from toolkit.model.gpt2 import GPT2
from toolkit.model.sizes import ModelSizes
from toolkit.program.readers.traffic import read_reductions
from toolkit.program.step import write_step
from toolkit.training.build import TIED
from toolkit.training.callback import Callback, Phase
from toolkit.training.optimizer import build_optimizer
from toolkit.training.schedule import lr_at
from toolkit.training.step import MicroBatch, train_step
from toolkit.verify.cases import Case, global_batch
from toolkit.verify.controls import Control, Fault, no_fault
from toolkit.verify.outcome import FOUND, Outcome, Work
from toolkit.verify.reference import Trajectory


def main(work_file: Path) -> None:
    """Run the cases and controls of a file that holds a `Work`; write what was found beside it."""
    work: Work = torch.load(work_file, weights_only=False)
    launched = read_launch(os.environ)
    start_process_group(launched, timeout=timedelta(seconds=work.timeout_s))
    lift_time_limits()  # the owner ends it all after as long
    found = (
        [run_case(case, work.sizes, launched) for case in work.cases],
        [run_control(control, work.sizes, launched) for control in work.controls],
    )
    if launched.rank == 0:
        torch.save(found, work_file.with_name(FOUND))
    leave_process_group()


def run_control(control: Control, sizes: ModelSizes, launched: Launched) -> Outcome | str:
    """Run a control's case with its fault; return the sentence if it is refused."""
    try:
        return run_case(control.case, sizes, launched, fault=control.fault)
    except ToolkitError as error:
        return str(error)


def run_case(
    case: Case, sizes: ModelSizes, launched: Launched, *, fault: Fault = no_fault
) -> Outcome:
    """Train for a few steps under the launched strategy, with every safeguard of a run in place.

    Args:
        case: what to do.
        sizes: the model, but for what the case itself sets.
        launched: the strategy and this process's place in it.
        fault: what to put out of order in the engine before it is checked.
    """
    engine = build_case(case, sizes, launched, fault=fault)
    counter = CollectiveCounter()
    losses, grad_norms = [], []
    gradients = FirstGradients(engine)
    for step in range(case.steps):
        torch.manual_seed(case.seed + 1000 * step + launched.rank)
        micro_batches = own_micro_batches(case, sizes, engine, step)
        lr = lr_at(step, case.optimizer_config(), steps=case.steps)
        held = HeldGradients(engine)
        with _watch(engine, case, sizes, step, counter):
            result = train_step(engine, micro_batches, lr=lr, callbacks=[gradients, held])
        losses.append(engine.ranks.sum(result.loss_share).item())
        grad_norms.append(float(result.grad_norm))
    named = engine.module.named_parameters()
    parameters = {name: _kept(engine.state.full_parameter(p)) for name, p in named}
    return Outcome(
        Trajectory(losses, grad_norms, gradients.by_name, parameters),
        # Scalars and vectors of norms are the loop's and the engines' own bookkeeping.
        {kind: counter.traffic(kind, above=len(parameters) + 1) for kind in KINDS},
        held_gradient_bytes=held.most_bytes(),
        held_gradient_dtypes=sorted(map(str, held.dtypes)),
        replica_groups=len(engine.state.replica_groups()),
        replica_problems=replica_problems(engine),
    )


def _kept(tensor: torch.Tensor) -> torch.Tensor:
    """Return a copy that is no part of the engine any more."""
    return tensor.detach().to("cpu", torch.float32, copy=True)


def _watch(
    engine: Engine, case: Case, sizes: ModelSizes, step: int, counter: CollectiveCounter
) -> AbstractContextManager[Any]:
    """The first step is checked; the last is counted, when engines have settled their buckets."""
    if step == 0:
        return check_first_step(engine, reductions_of(case, sizes, engine.launched))
    return counter if step == case.steps - 1 else nullcontext()


class FirstGradients(Callback):
    """Keeps the averaged, unclipped gradients of the first update, by name."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self.by_name: dict[str, torch.Tensor] = {}

    def on_phase(self, phase: Phase) -> None:
        """Copy them before they are clipped."""
        if phase == "optimizer" and not self.by_name:
            for name, parameter in self.engine.module.named_parameters():
                self.by_name[name] = _kept(self.engine.state.full_gradient(parameter))


class HeldGradients(Callback):
    """What a rank holds between two micro-steps of one step: whole storages, each counted once.

    Attributes:
        bytes: before each micro-step but the first.
        dtypes: of all that was held.
    """

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self.bytes: list[int] = []
        self.dtypes: set[torch.dtype] = set()
        self._is_first = True

    def on_phase(self, phase: Phase) -> None:
        """Count before a forward pass."""
        if phase == "forward" and not self._is_first:
            self.bytes.append(self.engine.state.held_gradient_bytes())
            self.dtypes |= {gradient.dtype for gradient in self.engine.state.held_gradients()}
        self._is_first = False

    def most_bytes(self) -> int | None:
        """Return the most bytes that any rank held, or None after one micro-step; a collective."""
        if not self.bytes:
            return None
        own = torch.tensor(max(self.bytes), device=self.engine.device)
        return int(self.engine.ranks.max(own))


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
    case: Case, sizes: ModelSizes, launched: Launched, *, fault: Fault = no_fault
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
    model.to(PartialState().device)
    engine = build_engine(
        model,
        build_optimizer(model, case.optimizer_config()),
        launched=launched,
        plan=case.plan(launched.world_size, seq_len=sizes.block_size),
        accumulation=case.accumulation,
        precision=case.precision,
        grad_clip=case.grad_clip,
        reduce=case.reduce,
        compile_blocks=case.compile,
    )
    fault(engine, case)
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


if __name__ == "__main__":
    follow(signal.SIGKILL)
    main(Path(sys.argv[1]))
    end_process(0)
