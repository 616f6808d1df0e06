"""One process of a launch: record each case in turn; rank 0 writes them all.

Started by `accelerate launch`; the same processes become one engine after another.
"""

import json
import os
import pickle
import signal
import sys
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from datetime import timedelta
from pathlib import Path
from typing import Any, cast

import torch

from toolkit.batching import plan_batch
from toolkit.engines.become import become
from toolkit.engines.build import build_engine
from toolkit.engines.engine import Engine
from toolkit.engines.launched import Launched
from toolkit.engines.process_group import leave_process_group
from toolkit.engines.replicated import ReplicatedEngine
from toolkit.launch.exit_code import end_process
from toolkit.launch.ownership import follow
from toolkit.training.optimizer import build_optimizer
from toolkit.training.step import MicroBatch, train_step
from toolkit.watch.lesson import LR, Case
from toolkit.watch.recorder import Problem, Recorder, Weights, numbers

_TIMEOUT = timedelta(seconds=120)
_LISTED = 8
"""Samples of a micro-step that a page lists; of more it gets the number and the sum."""


def main(work_file: Path) -> None:
    """Record the cases of a file; leave `found.json` beside it."""
    cases: list[Case] = pickle.loads(work_file.read_bytes())
    found = []
    launched: Launched | None = None
    for case in cases:
        if launched is None or launched.strategy != case.strategy:
            launched = become(case.strategy, timeout=_TIMEOUT)
        found.append(record(case, launched))
    if launched is not None and launched.rank == 0:
        work_file.with_name("found.json").write_text(json.dumps(found))
    leave_process_group()


def record(case: Case, launched: Launched) -> dict[str, Any]:
    """Train on the case's batches with the engine of its launch; return all ranks' numbers.

    Returns:
        `case`; `batches`, each with `samples` by rank and micro-step and its `frames`; and `drift`
        after each update, where ranks hold copies of each other.
    """
    engine, problem = _build(case, launched)
    recorder = Recorder(engine, problem, keeps_moments=case.scenario == "moments")
    batches, weights = [], []
    with _averaging(engine, case):
        for batch in range(case.batches):
            is_shown = batch < case.shown
            micro_batches = _micro_batches(case, batch, engine.rank)
            with recorder.step() if is_shown else nullcontext():
                result = train_step(
                    engine, micro_batches, lr=LR, callbacks=[recorder] if is_shown else []
                )
            if is_shown:
                own = {
                    "loss_share": float(result.loss_share),
                    "samples": [_listed(x) for x, _ in micro_batches],
                    "frames": recorder.frames,
                }
                batches.append(_merge(engine.ranks.gather(own)))
            weights.append(numbers(next(engine.state.replicated_tensors())))
    groups = engine.state.replica_groups()
    by_rank = engine.ranks.gather(weights) if groups else []
    return {
        "case": case.to_json(),
        "batches": batches,
        "drift": [drift(copies, groups) for copies in zip(*by_rank, strict=True)],
    }


def drift(copies: Sequence[Sequence[float]], groups: Sequence[Sequence[int]]) -> float:
    """Return the largest difference of a weight between ranks that hold copies of it.

    Args:
        copies: of each rank, the weights that it holds.
        groups: the ranks that hold copies of each other.
    """
    values = [of for group in groups for of in zip(*(copies[r] for r in group), strict=True)]
    return max(max(value) - min(value) for value in values)


def _build(case: Case, launched: Launched) -> tuple[Engine, Problem]:
    from toolkit.engines.accelerate_internals import forget_engine

    forget_engine()
    problem = Problem(case.first_weights())
    engine = build_engine(
        problem,
        build_optimizer(problem, case.optimizer()),
        launched=launched,
        plan=plan_batch(
            tokens_per_step=case.samples,
            seq_len=1,
            micro_batch_size=case.micro_batch_size,
            world_size=case.gpus,
        ),
        accumulation=case.accumulation,
        precision="fp32",
        grad_clip=0.0,
        block_classes=(Weights,),
    )
    return engine, problem


def _averaging(engine: Engine, case: Case) -> AbstractContextManager[None]:
    if case.averages:
        return nullcontext()
    return cast(ReplicatedEngine, engine).without_averaging()


def _micro_batches(case: Case, batch: int, rank: int) -> list[MicroBatch]:
    """Return samples, each one target; a micro-batch counts as a single one for mean of means."""
    found = [
        torch.from_numpy(case.micro_batch(batch, micro_step, rank).copy())
        for micro_step in range(case.grad_accum_steps)
    ]
    return [(x, torch.zeros(1 if case.mean_of_means else len(x), dtype=torch.long)) for x in found]


def _listed(x: torch.Tensor) -> dict[str, Any]:
    values = [numbers(sample) for sample in x[:_LISTED]] if len(x) <= _LISTED else []
    return {"count": len(x), "sum": numbers(x.sum(0)), "values": values}


def _merge(of_ranks: list[dict[str, Any]]) -> dict[str, Any]:
    """Put what each rank recorded of a batch side by side, phase by phase."""
    frames = [
        {
            "phase": ranks[0]["phase"],
            "micro_step": ranks[0]["micro_step"],
            "ranks": [
                {name: found for name, found in own.items() if name not in ("phase", "micro_step")}
                for own in ranks
            ],
        }
        for ranks in zip(*(own["frames"] for own in of_ranks), strict=True)
    ]
    return {
        "loss": sum(own["loss_share"] for own in of_ranks),
        "samples": [own["samples"] for own in of_ranks],
        "frames": frames,
    }


if __name__ == "__main__":
    follow(signal.SIGKILL)
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    main(Path(sys.argv[1]))
    end_process(0)
