"""fp16 with the engine's own loss scaler: scales, overflow, repetition, saving and loading."""

import json
from collections.abc import Iterator
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

from tests.distributed.other_model import flat, largest
from tests.half_precision import OVERFLOWS, fp16_on_cpu
from toolkit.engines.engine import Engine
from toolkit.engines.launched import Launched
from toolkit.engines.strategies import possible_accumulations
from toolkit.training.callback import Progress
from toolkit.training.loop import Loop
from toolkit.training.step import MicroBatch, train_step
from toolkit.verify import worker
from toolkit.verify.cases import TINY, Case

LR = 0.1


def half_precision(launched: Launched) -> Iterator[dict[str, Any]]:
    """Train beside fp32, overflow, repeat as a run does, and load the scale elsewhere."""
    mode = possible_accumulations(launched.strategy)[0]
    case = Case(accumulation=mode, grad_accum_steps=4, precision="fp16", grad_clip=0.3)
    with fp16_on_cpu(launched.strategy):
        exact, half, fused = (
            worker.build_case(
                replace(case, precision=precision, optimizer=optimizer), TINY, launched
            )
            for precision, optimizer in (("fp32", "sgd"), ("fp16", "sgd"), ("fp16", "adamw"))
        )
    batches = worker.own_micro_batches(case, TINY, half, 0)
    norms = [float(train_step(engine, batches, lr=LR).grad_norm) for engine in (exact, half)]
    yield {
        "norms": norms,
        "parameters": largest(_parameters(half), _parameters(exact)),
        "scale": half.state.loss_scale,
        **_overflow(fused, batches),
        "lowered": fused.state.loss_scale,
        **_load(half, fused.state.loss_scale, batches),
    }


def _parameters(engine: Engine) -> list[float]:
    return flat(
        engine.state.full_parameter(parameter) for _, parameter in engine.module.named_parameters()
    )


def _overflow(engine: Engine, batches: list[MicroBatch]) -> dict[str, Any]:
    """Step at a scale that is too high, then let the run's own repetition find one."""
    engine.state.load_loss_scale({"scale": OVERFLOWS, "held": 0})
    before = _parameters(engine)
    train_step(engine, batches, lr=LR)
    left_out = engine.step_was_skipped
    unmoved = _parameters(engine) == before
    run: Any = SimpleNamespace(
        engine=engine,
        config=SimpleNamespace(precision="fp16"),
        batches=SimpleNamespace(micro_batches=None),
    )
    loop = Loop(run, Progress(lr=LR), [])
    result = loop._update(batches)
    return {
        "left_out": left_out,
        "unmoved": unmoved,
        "repeated": loop.progress.overflows,
        "repeated_norm": float(result.grad_norm),
        "moved": _parameters(engine) != before,
    }


def _load(engine: Engine, saved: Any, batches: list[MicroBatch]) -> dict[str, Any]:
    engine.state.load_loss_scale(json.loads(json.dumps(saved)))
    loaded = engine.state.loss_scale
    train_step(engine, batches, lr=LR)
    return {"loaded": loaded, "counted_on": engine.state.loss_scale}
