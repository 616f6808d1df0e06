"""fp16 with the engine's own loss scaler: scales, overflow, repetition, saving and loading."""

import json
from collections.abc import Iterator
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

from tests.distributed.other_model import flat, largest
from tests.half_precision import OVERFLOWS, fp16_on_cpu
from toolkit.backends.engine import Engine
from toolkit.backends.launched import Launched
from toolkit.backends.strategies import possible_accumulations
from toolkit.training.loop import Loop
from toolkit.training.step import MicroBatch, train_step
from toolkit.verify import arm
from toolkit.verify.cases import TINY, Case

LR = 0.1


def half_precision(launched: Launched) -> Iterator[dict[str, Any]]:
    """Train beside fp32, overflow, repeat as the loop does, and load the scale elsewhere."""
    mode = possible_accumulations(launched.strategy)[0]
    case = Case(accumulation=mode, grad_accum_steps=4, precision="fp16", grad_clip=0.3)
    with fp16_on_cpu(launched.strategy):
        exact, engine, another = (
            arm.build_case(replace(case, precision=precision), TINY, launched)
            for precision in ("fp32", "fp16", "fp16")
        )
    batches = arm.own_micro_batches(case, TINY, engine, 0)
    norms = [float(train_step(e, batches, lr=LR).grad_norm) for e in (exact, engine)]
    yield {
        "norms": norms,
        "parameters": largest(_parameters(engine), _parameters(exact)),
        "scale": engine.loss_scale,
        **_overflow(engine, batches),
        "lowered": engine.loss_scale,
        **_load(another, engine.loss_scale, batches),
    }


def _parameters(engine: Engine) -> list[float]:
    return flat(engine.full_parameter(parameter) for _, parameter in engine.named_parameters())


def _overflow(engine: Engine, batches: list[MicroBatch]) -> dict[str, Any]:
    """Step at a scale that is too high, then let the loop's own repetition find one."""
    engine.load_loss_scale({"scale": OVERFLOWS, "held": 0})
    before = _parameters(engine)
    train_step(engine, batches, lr=LR)
    left_out = engine.step_was_skipped
    unmoved = _parameters(engine) == before
    loop = SimpleNamespace(engine=engine, config=SimpleNamespace(precision="fp16"), step=1)
    result, skipped = Loop._update(cast(Any, loop), batches, LR)
    return {
        "left_out": left_out,
        "unmoved": unmoved,
        "repeated": skipped,
        "repeated_norm": float(result.grad_norm),
        "moved": _parameters(engine) != before,
    }


def _load(engine: Engine, saved: Any, batches: list[MicroBatch]) -> dict[str, Any]:
    engine.load_loss_scale(json.loads(json.dumps(saved)))
    loaded = engine.loss_scale
    train_step(engine, batches, lr=LR)
    return {"loaded": loaded, "counted_on": engine.loss_scale}
