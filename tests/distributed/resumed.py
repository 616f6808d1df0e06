"""A run that is resumed with another accumulation: the state to the bit, the next step nearly."""

import tempfile
from collections.abc import Iterator
from typing import Any

import torch
import torch.distributed as dist

from toolkit.engines.engine import Engine
from toolkit.engines.launched import Launched
from toolkit.engines.mixture import ROOT, Mixture
from toolkit.engines.strategies import Accumulation
from toolkit.own_loop import Checkpoints
from toolkit.training.step import train_step
from toolkit.verify import worker
from toolkit.verify.cases import TINY, Case

FIRST = Mixture(hold=(ROOT,), keep=(0, 1))
OTHERS: tuple[Accumulation | Mixture, ...] = (FIRST, Mixture(hold=(0, 1)), "sharded", "replicated")


def resumed(launched: Launched) -> Iterator[dict[str, Any]]:
    """Train two steps and save; yield how far another step with each accumulation then leads."""
    if launched.strategy != "fsdp2":
        return
    case = Case(accumulation=FIRST, grad_accum_steps=4, optimizer="adamw")
    engine = worker.build_case(case, TINY, launched)
    batches = worker.own_micro_batches(case, TINY, engine, 0)
    for _ in range(2):
        train_step(engine, batches, lr=1e-2)
    with tempfile.TemporaryDirectory() as own:
        folder = [own]
        dist.broadcast_object_list(folder)
        Checkpoints(folder[0], engine).save(2)
        saved = _parameters(engine)
        train_step(engine, batches, lr=1e-2)
        right = _parameters(engine)
        for accumulation in OTHERS:
            other = Case(accumulation=accumulation, grad_accum_steps=4, optimizer="adamw", seed=2)
            loaded = worker.build_case(other, TINY, launched)
            Checkpoints(folder[0], loaded).resume()
            same_state = bool(_parameters(loaded).equal(saved))
            train_step(loaded, batches, lr=1e-2)
            after = _parameters(loaded)
            yield {
                "accumulation": str(accumulation),
                "state": same_state,
                "equal": bool(after.equal(right)),
                "distance": float((after - right).norm() / (right - saved).norm()),
            }
        dist.barrier()


def _parameters(engine: Engine) -> torch.Tensor:
    named = engine.module.named_parameters()
    return torch.cat([engine.state.full_parameter(p).flatten() for _, p in named]).clone()
