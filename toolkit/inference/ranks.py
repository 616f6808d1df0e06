"""The processes that share an evaluation, where `torchrun` started several."""

import os
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import distributed

from toolkit.engines.process_group import leave_process_group
from toolkit.engines.ranks import Ranks

HOST = torch.device("cpu")


@contextmanager
def joined_ranks() -> Iterator[Ranks]:
    """Yield the ranks, which sum tensors in host memory; one process alone needs no launcher."""
    size = int(os.environ.get("WORLD_SIZE", "1"))
    if size == 1:
        yield Ranks(0, 1, HOST)
        return
    distributed.init_process_group("gloo")
    try:
        yield Ranks(distributed.get_rank(), size, HOST)
    finally:
        leave_process_group()
