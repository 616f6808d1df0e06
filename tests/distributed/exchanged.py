"""Whether the exchange scatters the sum over all ranks, to the bit."""

from collections.abc import Iterator
from typing import Any

import torch
import torch.distributed as dist

from toolkit.engines.exchange import Exchange
from toolkit.engines.launched import Launched

PART = 1000


def exchanged(launched: Launched) -> Iterator[dict[str, Any]]:
    """Yield for each dtype what came out beside the sum in the order of the ranks."""
    if launched.strategy not in ("fsdp2", "hsdp"):
        return
    ranks, rank = launched.world_size, launched.rank
    for sent in (torch.bfloat16, torch.float32):
        gradients = [_gradient(each, ranks).to(sent) for each in range(ranks)]
        comm = Exchange(PART * ranks, sent)
        whole = comm.allocate((PART * ranks,), dtype=torch.float32, device=torch.device("cpu"))
        own = comm.allocate((PART,), dtype=torch.float32, device=torch.device("cpu"))
        whole.copy_(gradients[rank])
        assert dist.group.WORLD is not None
        comm(own, whole, dist.group.WORLD, dist.ReduceOp.AVG)
        right = torch.zeros(PART)
        for gradient in gradients:
            right += gradient.view(ranks, PART)[rank]
        yield {
            "sent": str(whole.dtype),
            "summed": str(own.dtype),
            "equal": bool(own.equal(right / ranks)),
        }


def _gradient(rank: int, ranks: int) -> torch.Tensor:
    return torch.randn(PART * ranks, generator=torch.Generator().manual_seed(rank))
