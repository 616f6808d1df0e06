"""One launched process of an arm: run each case in turn and leave what it did as files.

Started by `accelerate launch` with a shipped launch file, like any run; one launch serves all cases
of a strategy, for starting processes takes longer than training them.
"""

import json
import os
import sys
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict, dataclass
from datetime import timedelta
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file

from toolkit.backends.build import build_engine
from toolkit.backends.collectives import KINDS, Collectives, Kind, Traffic, count_collectives
from toolkit.backends.engine import Engine
from toolkit.backends.in_force import check_first_step, check_in_force
from toolkit.backends.launched import Launched, read_launch
from toolkit.backends.process_group import start_process_group
from toolkit.data.order import micro_batch_slots
from toolkit.model.gpt2 import GPT2
from toolkit.model.sizes import ModelSizes
from toolkit.training.build import TIED
from toolkit.training.optimizer import build_optimizer
from toolkit.training.step import MicroBatch, train_step
from toolkit.verify.cases import Case, global_batch
from toolkit.verify.reference import Trajectory


@dataclass(frozen=True)
class Outcome:
    """What an arm did in one case, and what it communicated in its last step.

    Attributes:
        traffic: by kind, without payloads as small as a vector of norms.
        replicas_differ: parameters that are not the same bits on every rank.
    """

    trajectory: Trajectory
    traffic: dict[Kind, Traffic]
    replicas_differ: int


def main(order_file: Path) -> None:
    """Run the cases of an order file, which also says where the results go."""
    order = json.loads(order_file.read_text())
    sizes = ModelSizes(**order["sizes"])
    launched = read_launch(os.environ)
    start_process_group(launched, timeout=timedelta(seconds=order["timeout_s"]))
    for number, fields in enumerate(order["cases"]):
        outcome = run_case(Case(**fields), sizes, launched)
        if launched.rank == 0:
            _write(Path(order["results"]) / f"case_{number:03d}", outcome)


def run_case(
    case: Case,
    sizes: ModelSizes,
    launched: Launched,
    *,
    prepare: Callable[[Engine], None] = lambda engine: None,
) -> Outcome:
    """Train for a few steps under the launched strategy.

    Args:
        case: what to do.
        sizes: the model.
        launched: the strategy and this process's place in it.
        prepare: called with the engine before the first step.
    """
    engine = build_case(case, sizes, launched)
    prepare(engine)
    gradients = _capture_gradients(engine)
    lr = case.optimizer_config().lr
    losses, grad_norms = [], []
    counted = Collectives()
    for step in range(case.steps):
        torch.manual_seed(case.seed + 1000 * step + launched.rank)
        micro_batches = own_micro_batches(case, sizes, engine, step)
        with _watch(engine, case, step) as watched:
            result = train_step(engine, micro_batches, lr=lr)
        counted = watched or counted
        losses.append(result.loss.item())
        grad_norms.append(float(result.grad_norm))
    parameters = {name: engine.full_parameter(p).clone() for name, p in engine.named_parameters()}
    return Outcome(
        Trajectory(losses, grad_norms, gradients, parameters),
        # Scalars and vectors of norms are the loop's and the engines' own bookkeeping.
        {kind: counted.traffic(kind, above=len(parameters)) for kind in KINDS},
        replicas_differ=_replicas_differ(engine, parameters),
    )


def _watch(engine: Engine, case: Case, step: int) -> AbstractContextManager[Collectives | None]:
    """The first step is checked; the last is counted, when engines have settled their buckets."""
    if step == 0:
        return check_first_step(engine, grad_accum_steps=case.grad_accum_steps)
    return count_collectives() if step == case.steps - 1 else nullcontext()


def _replicas_differ(engine: Engine, parameters: dict[str, torch.Tensor]) -> int:
    """Number of parameters whose whole value is not the same bits on every rank."""
    sums = [p.contiguous().view(torch.int32).sum(dtype=torch.int64) for p in parameters.values()]
    bits = torch.stack(sums)
    return int((engine.max_over_ranks(bits) != -engine.max_over_ranks(-bits)).sum())


def build_case(case: Case, sizes: ModelSizes, launched: Launched) -> Engine:
    """Build the engine of a case, in a process that may have run others before."""
    from accelerate.state import AcceleratorState, GradientState

    AcceleratorState._reset_state()
    GradientState._reset_state()
    torch.manual_seed(case.seed)
    model = GPT2(
        sizes, dropout=case.dropout, activation_checkpointing=case.activation_checkpointing
    )
    if case.compile:
        model.compile_blocks()
    engine = build_engine(
        model,
        build_optimizer(model, case.optimizer_config()),
        launched=launched,
        plan=case.plan(launched.world_size, seq_len=sizes.block_size),
        sizes=sizes,
        accumulation=case.accumulation,
        precision=case.precision,
        grad_clip=case.grad_clip,
    )
    check_in_force(engine, precision=case.precision, tied=TIED)
    return engine


def own_micro_batches(case: Case, sizes: ModelSizes, engine: Engine, step: int) -> list[MicroBatch]:
    """Return this rank's part of the global batch, cut as a run's data is."""
    inputs, targets = global_batch(step, seed=case.seed, sizes=sizes, masked=case.masked)
    plan = case.plan(engine.world_size, seq_len=sizes.block_size)
    slots = [
        micro_batch_slots(
            micro_step,
            micro_batch_size=plan.micro_batch_size,
            world_size=engine.world_size,
            rank=engine.rank,
        )
        for micro_step in range(case.grad_accum_steps)
    ]
    return [(inputs[s].to(engine.device), targets[s].to(engine.device)) for s in slots]


def _capture_gradients(engine: Engine) -> dict[str, torch.Tensor]:
    """Return a dictionary that the first update fills with the averaged, unclipped gradients."""
    captured: dict[str, torch.Tensor] = {}
    clip_and_step = engine.clip_and_step

    def capture_then_step() -> torch.Tensor:
        if not captured:
            for name, parameter in engine.named_parameters():
                captured[name] = engine.full_gradient(parameter).detach().clone()
        return clip_and_step()

    engine.clip_and_step = capture_then_step  # type: ignore[method-assign]
    return captured


def _write(stem: Path, outcome: Outcome) -> None:
    did = outcome.trajectory
    figures = {
        "losses": did.losses,
        "grad_norms": did.grad_norms,
        "traffic": {kind: asdict(traffic) for kind, traffic in outcome.traffic.items()},
        "replicas_differ": outcome.replicas_differ,
    }
    stem.with_suffix(".json").write_text(json.dumps(figures))
    for part, tensors in (("gradients", did.gradients), ("parameters", did.parameters)):
        whole = {name: tensor.float().cpu().contiguous() for name, tensor in tensors.items()}
        save_file(whole, stem.with_name(f"{stem.name}.{part}.safetensors"))


def read_outcome(stem: Path) -> Outcome:
    """Return what an arm left under this name."""
    figures = json.loads(stem.with_suffix(".json").read_text())
    gradients, parameters = (
        load_file(stem.with_name(f"{stem.name}.{part}.safetensors"))
        for part in ("gradients", "parameters")
    )
    return Outcome(
        Trajectory(figures["losses"], figures["grad_norms"], gradients, parameters),
        {kind: Traffic(**figures["traffic"][kind]) for kind in KINDS},
        replicas_differ=figures["replicas_differ"],
    )


if __name__ == "__main__":
    main(Path(sys.argv[1]))
