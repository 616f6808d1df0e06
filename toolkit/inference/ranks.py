"""The processes that share an evaluation, where `torchrun` started several."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import distributed


@dataclass(frozen=True)
class Ranks:
    """This process among those that share the work."""

    rank: int
    size: int

    def sum(self, values: torch.Tensor) -> torch.Tensor:
        """Return the sum over all ranks of a tensor in host memory, the same on each."""
        if self.size > 1:
            distributed.all_reduce(values)
        return values


@contextmanager
def joined_ranks() -> Iterator[Ranks]:
    """Yield the ranks; one process alone needs no launcher."""
    size = int(os.environ.get("WORLD_SIZE", "1"))
    if size == 1:
        yield Ranks(0, 1)
        return
    distributed.init_process_group("gloo")
    try:
        yield Ranks(distributed.get_rank(), size)
    finally:
        distributed.destroy_process_group()
