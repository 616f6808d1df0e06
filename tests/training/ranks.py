"""Stand-in ranks: real engines on one model each, with threads in place of processes.

The model's loss is read off its input: a token of 6 has loss 6, so that means are known beforehand.
"""

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from typing import Any, TypeVar

import numpy as np
import torch
from torch import nn

from toolkit.engines.launched import Launched
from toolkit.engines.ranks import Ranks
from toolkit.engines.replicated import ReplicatedEngine
from toolkit.model.loss import IGNORE_INDEX

Result = TypeVar("Result")
Rows = list[list[float | None]]


class LossIsToken(nn.Module):
    """Sum of the valid tokens, times a factor that starts as 1 and has that sum as its gradient."""

    def __init__(self) -> None:
        super().__init__()
        self.factor = nn.Parameter(torch.ones(()))

    def forward(self, tokens: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        return self.factor * tokens[targets != IGNORE_INDEX].sum()


class Meeting:
    """Where all threads leave a value and take the sum away."""

    def __init__(self, world_size: int) -> None:
        self.barrier = threading.Barrier(world_size, timeout=20)
        self.values: dict[int, torch.Tensor] = {}

    def sum(self, rank: int, value: torch.Tensor) -> torch.Tensor:
        self.values[rank] = value.detach().clone()
        self.barrier.wait()
        total = torch.stack(list(self.values.values())).sum(dim=0)
        self.barrier.wait()
        return total


class ThreadRanks(Ranks):
    """Sums by way of a meeting."""

    def __init__(self, rank: int, meeting: Meeting) -> None:
        super().__init__(rank, meeting.barrier.parties, torch.device("cpu"))
        self.meeting = meeting

    def begin_sum(self, value: torch.Tensor) -> Callable[[], torch.Tensor]:
        total = self.meeting.sum(self.rank, value)
        return lambda: total


class ThreadEngine(ReplicatedEngine):
    """One of several ranks: averages the gradient over them before the update, as DDP does."""

    def __init__(self, rank: int, meeting: Meeting) -> None:
        world_size = meeting.barrier.parties
        model = LossIsToken()
        super().__init__(
            accelerator=SimpleNamespace(
                device=torch.device("cpu"),
                backward=torch.Tensor.backward,
                scaler=None,
            ),
            module=model,
            model=model,
            optimizer=torch.optim.SGD(model.parameters(), lr=123.0),
            launched=Launched("single", rank, rank, world_size, 1, None),
            accumulation="replicated",
            grad_clip=0.0,
        )
        self.meeting = meeting
        self.ranks = ThreadRanks(rank, meeting)

    def clip_and_step(self) -> torch.Tensor:
        gradient = self.model.factor.grad
        gradient.copy_(self.meeting.sum(self.rank, gradient) / self.world_size)
        return super().clip_and_step()


def on_ranks(work: Callable[[ThreadEngine], Result], world_size: int) -> list[Result]:
    """Do the same work on every rank at once; return what each found."""
    meeting = Meeting(world_size)
    engines = [ThreadEngine(rank, meeting) for rank in range(world_size)]
    with ThreadPoolExecutor(world_size) as threads:
        return list(threads.map(work, engines))


def batch(rows: Rows) -> tuple[torch.Tensor, torch.Tensor]:
    """Tokens that are losses, and targets that are ignored where a loss is None."""
    tokens = torch.tensor([[loss or 0.0 for loss in row] for row in rows])
    valid = torch.tensor([[loss is not None for loss in row] for row in rows])
    return tokens, torch.where(valid, 1, IGNORE_INDEX)


def arrays(rows: Rows) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """The same as the arrays that data comes in."""
    tokens, targets = batch(rows)
    return tokens.numpy(), targets.numpy()
