"""Numbers and small values that all ranks share, whatever engine they train with."""

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
import torch.distributed as dist


class Ranks:
    """All processes of a launch; every method is a collective, so every rank must call it.

    Args:
        rank: which of them this process is.
        world_size: how many there are; one process alone has no group.
        device: where the backend takes its tensors.

    Attributes:
        waited_s: seconds in collectives of numbers, since the start.
    """

    def __init__(self, rank: int, world_size: int, device: torch.device) -> None:
        self.rank = rank
        self.world_size = world_size
        self.device = device
        self.waited_s = 0.0

    def sum(self, value: torch.Tensor) -> torch.Tensor:
        """Return the sum of `value` over all ranks."""
        return self.begin_sum(value)()

    def begin_sum(self, value: torch.Tensor) -> Callable[[], torch.Tensor]:
        """Start to add up `value` over all ranks; what is returned waits for the sum."""
        total = value.detach().clone()
        work = dist.all_reduce(total, async_op=True) if self.world_size > 1 else None

        def finish() -> torch.Tensor:
            if work is not None:
                with self._waiting():
                    work.wait()
            return total

        return finish

    def max(self, value: torch.Tensor) -> torch.Tensor:
        """Return the largest `value` of all ranks."""
        largest = value.detach().clone()
        if self.world_size > 1:
            with self._waiting():
                dist.all_reduce(largest, op=dist.ReduceOp.MAX)
        return largest

    def gather_numbers(self, own: Sequence[float]) -> list[list[float]]:
        """Return each rank's numbers, in the order of ranks; one collective for all of them.

        Whole numbers below 2^53 come through exactly.
        """
        if self.world_size == 1:
            return [list(own)]
        sent = torch.tensor(own, dtype=torch.float64, device=self.device)
        found = [torch.empty_like(sent) for _ in range(self.world_size)]
        with self._waiting():
            dist.all_gather(found, sent)
        return torch.stack(found).tolist()

    def gather(self, value: Any) -> list[Any]:
        """Return every rank's value, in the order of ranks."""
        if self.world_size == 1:
            return [value]
        values: list[Any] = [None] * self.world_size
        dist.all_gather_object(values, value)
        return values

    @contextmanager
    def _waiting(self) -> Iterator[None]:
        started = time.perf_counter()
        yield
        self.waited_s += time.perf_counter() - started
