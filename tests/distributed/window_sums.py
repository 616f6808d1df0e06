"""How exactly a coalesced bf16 window's fp32 sums are averaged over ranks."""

from collections.abc import Iterator
from typing import Any
from unittest.mock import patch

import torch
import torch.distributed as dist

from tests.distributed.abandoned import gradient
from toolkit.engines import deepspeed_config
from toolkit.engines.engine import Engine
from toolkit.engines.launched import Launched
from toolkit.verify import worker
from toolkit.verify.cases import TINY, Case


def window_sums(launched: Launched) -> Iterator[dict[str, Any]]:
    """Yield the distance from the fp64 average of what the ranks' own micro-steps added up to."""
    if launched.strategy not in ("zero2", "zero3"):
        return
    case = Case(accumulation="replicated", grad_accum_steps=4, precision="bf16")
    yield {"error": _error(case, launched)}
    if launched.strategy == "zero2":
        with patch.object(deepspeed_config, "is_reduced_in_place", lambda *_: False):
            yield {"error through the bucket": _error(case, launched)}


def _error(case: Case, launched: Launched) -> float:
    engine = worker.build_case(case, TINY, launched)
    own: list[torch.Tensor] = []
    backward = engine.backward

    def backward_then_look(loss: torch.Tensor) -> None:
        backward(loss)
        if engine.at_boundary:
            own.append(_own_sums(engine))

    with patch.object(engine, "backward", backward_then_look):
        found = gradient(engine, worker.own_micro_batches(case, TINY, engine, 0)).double()
    [average] = own
    dist.all_reduce(average)
    average /= launched.world_size
    return float((found - average).norm() / average.norm())


def _own_sums(engine: Engine) -> torch.Tensor:
    held = [p.grad for _, p in engine.module.named_parameters() if p.grad is not None]
    return torch.cat([gradient.flatten() for gradient in held]).double()
