"""Windows left between two micro-steps, as an exception does, and the gradient of the next one."""

from collections.abc import Iterator
from typing import Any
from unittest.mock import patch

import torch

from toolkit.engines.collectives import CollectiveCounter
from toolkit.engines.engine import Engine
from toolkit.engines.launched import Launched
from toolkit.engines.strategies import Precision, possible_accumulations
from toolkit.training.step import MicroBatch, count_valid, train_step
from toolkit.verify import worker
from toolkit.verify.cases import TINY, Case

PRECISIONS: tuple[Precision, ...] = ("fp32", "bf16")


class Interruption(Exception):
    """What comes between two micro-steps."""


def abandoned_windows(launched: Launched) -> Iterator[dict[str, Any]]:
    """Interrupt windows, go on, and yield how far the next gradient is from a clean one."""
    for mode in possible_accumulations(launched.strategy):
        for precision in PRECISIONS:
            case = Case(accumulation=mode, grad_accum_steps=4, precision=precision)
            engine = worker.build_case(case, TINY, launched)
            batches = worker.own_micro_batches(case, TINY, engine, 0)
            clean = gradient(engine, batches)
            found = [_abandon(engine, batches, clean, after=after) for after in (1, 2, 3, 4)]
            with patch.object(engine, "_drop_gradients", lambda: None):
                uncleared = _abandon(engine, batches, clean, after=2)
            yield {
                "accumulation": mode,
                "precision": precision,
                "cleared": found,
                "without clearing": uncleared,
            }


def _abandon(
    engine: Engine, batches: list[MicroBatch], clean: torch.Tensor, *, after: int
) -> tuple[float, int]:
    """Return the next gradient's distance from the clean one, and the collectives in between."""
    kept = _interrupt(engine, batches, after=after)
    with CollectiveCounter() as counter:
        engine.abandon_window()
    del kept
    found = gradient(engine, batches)
    return float((found - clean).norm() / clean.norm()), len(counter.seen)


def _interrupt(engine: Engine, batches: list[MicroBatch], *, after: int) -> BaseException:
    """Leave a window as an exception does; while it is kept, so is the generator in the frame."""
    targets = engine.ranks.sum(count_valid(batches))
    try:
        for micro_step, (tokens, wanted) in enumerate(engine.accumulate(batches), start=1):
            engine.backward(engine.model(tokens, wanted) / targets)
            if micro_step == after < len(batches):
                raise Interruption
    except Interruption as error:
        return error
    return Interruption()


def gradient(engine: Engine, batches: list[MicroBatch]) -> torch.Tensor:
    """The averaged gradient of one window, and an update by nothing."""
    found: list[torch.Tensor] = []
    clip_and_step = engine.clip_and_step

    def look_then_step() -> torch.Tensor:
        whole = (
            engine.state.full_gradient(parameter)
            for _, parameter in engine.module.named_parameters()
        )
        found.append(torch.cat([gradient.detach().float().flatten() for gradient in whole]))
        return clip_and_step()

    with patch.object(engine, "clip_and_step", look_then_step):
        train_step(engine, batches, lr=0.0)
    return found[0]
