"""A loop's processes take turns with the other loops': what they are to do, and where they wait."""

import os
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import pairwise
from multiprocessing.connection import Connection
from pathlib import Path

import torch
import torch.distributed as dist

from benchmarks.group import Order
from benchmarks.overhead.workload import Workload
from benchmarks.rank import serve
from benchmarks.record import Case


class LoopCase(Case):
    """A case trained by one of several loops: the module in this folder, less its `_loop`."""

    loop: str

    @property
    def name(self) -> str:
        """Such as `toolkit ddp chunked`."""
        return f"{self.loop} {self.strategy}" + (" chunked" if self.loss == "chunked" else "")


class LoopOrder(Order):
    """What a loop is started with, the same on all its ranks; `data` has the token shard."""

    case: LoopCase
    workload: Workload
    data: Path

    def micro_batches(self) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        """Yield this rank's micro-batches, one after another, on its device."""
        for batch in self.workload.micro_batches(self.data, rank=int(os.environ["RANK"])):
            tokens, targets = (part.to(own_device()) for part in batch)
            yield tokens, targets


def own_device() -> torch.device:
    """Return this rank's device."""
    if torch.cuda.is_available():
        return torch.device("cuda", int(os.environ["LOCAL_RANK"]))
    return torch.device("cpu")


@dataclass(frozen=True)
class Turn:
    """What a loop did in one turn.

    Attributes:
        step_s: seconds of each timed step.
        cpu_s: processor seconds of rank 0 in all of them together; waiting is not in it, nor what
            other programs took.
        loss: mean of all steps, the one that is not timed included.
    """

    step_s: list[float]
    cpu_s: float
    loss: float


class Turns:
    """What a loop calls on every rank; `before_step` stands at the top of the loop.

    Args:
        driver: whom to wait for.
        steps_per_turn: the first of them is not timed: it finds the caches cold.
    """

    def __init__(self, driver: Connection, *, steps_per_turn: int) -> None:
        self.driver = driver
        self.steps_per_turn = steps_per_turn
        self._losses: list[float] = []
        self._clock: list[float] = []
        self._cpu_before = 0.0

    def loss(self, value: float) -> None:
        """Report the loss of the step just done, or once per turn the mean of its steps."""
        self._losses.append(value)

    def before_step(self, step: int) -> None:
        """Wait for the next turn where one begins; `step` counts completed steps.

        Raises:
            SystemExit: there are no more turns.
        """
        within = step % self.steps_per_turn
        if within == 0:
            self.driver.send((None, self._end() if step else dist.get_rank()))
            if self.driver.recv() is None:
                sys.exit(0)
            _synchronise()
            return
        if within == 1:
            _synchronise()
            self._cpu_before = time.process_time()
        self._clock.append(time.perf_counter())

    def _end(self) -> Turn:
        _synchronise()
        self._clock.append(time.perf_counter())
        found = Turn(
            step_s=[end - start for start, end in pairwise(self._clock)],
            cpu_s=time.process_time() - self._cpu_before,
            loss=sum(self._losses) / len(self._losses),
        )
        self._losses.clear()
        self._clock.clear()
        return found


def _synchronise() -> None:
    """Wait for all ranks of the case, and for what a GPU still has to do."""
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    dist.barrier()


def main(train: Callable[[LoopOrder, Turns], None]) -> None:
    """Train as the order file on the command line asks, until there are no more turns."""

    def act(order: LoopOrder, driver: Connection) -> None:
        if torch.cuda.is_available():
            torch.cuda.set_device(own_device())
        train(order, Turns(driver, steps_per_turn=order.workload.steps_per_turn))

    serve(LoopOrder, act)
