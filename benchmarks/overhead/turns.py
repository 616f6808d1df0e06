"""Cases take turns on the same cores: all are started once, and all but one wait.

The driver keeps a key-value store; waiting for a key costs a case nothing.
"""

import json
import sys
import time
from dataclasses import asdict, dataclass
from datetime import timedelta
from itertools import pairwise

import torch
import torch.distributed as dist

_LONGEST_WAIT = timedelta(minutes=30)


@dataclass(frozen=True)
class Turn:
    """What a case did in one turn.

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
    """A case's side, on every rank; `before_step` stands at the top of the loop.

    Args:
        port: of the driver's store on this machine.
        case: its name.
        steps_per_turn: the first of them is not timed: it finds the caches cold.
    """

    def __init__(self, *, port: int, case: str, steps_per_turn: int) -> None:
        self.store = dist.TCPStore("127.0.0.1", port, is_master=False, timeout=_LONGEST_WAIT)
        self.case = case
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
        turn, within = divmod(step, self.steps_per_turn)
        if within == 0:
            if turn:
                self._end(turn - 1)
            self._wait(turn)
            return
        if within == 1:
            _synchronise()
            self._cpu_before = time.process_time()
        self._clock.append(time.perf_counter())

    def _end(self, turn: int) -> None:
        _synchronise()
        self._clock.append(time.perf_counter())
        found = Turn(
            step_s=[end - start for start, end in pairwise(self._clock)],
            cpu_s=time.process_time() - self._cpu_before,
            loss=sum(self._losses) / len(self._losses),
        )
        if dist.get_rank() == 0:
            self.store.set(_done(self.case, turn), json.dumps(asdict(found)))
        self._losses.clear()
        self._clock.clear()

    def _wait(self, turn: int) -> None:
        key = _go(self.case, turn)
        self.store.wait([key], _LONGEST_WAIT)
        if self.store.get(key) != b"go":
            sys.exit(0)
        _synchronise()


class Conductor:
    """The driver's side."""

    def __init__(self) -> None:
        self.store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)

    @property
    def port(self) -> int:
        """Where cases find the store."""
        return self.store.port

    def go(self, case: str, turn: int) -> None:
        """Let a case have its turn."""
        self.store.set(_go(case, turn), "go")

    def stop(self, case: str, turn: int) -> None:
        """Let a case end instead of having this turn."""
        self.store.set(_go(case, turn), "stop")

    def result(self, case: str, turn: int) -> Turn | None:
        """Return what a case did in its turn, or None as long as it is not over."""
        key = _done(case, turn)
        return Turn(**json.loads(self.store.get(key))) if self.store.check([key]) else None


def _go(case: str, turn: int) -> str:
    return f"{case}/{turn}/go"


def _done(case: str, turn: int) -> str:
    return f"{case}/{turn}/done"


def _synchronise() -> None:
    """Wait for all ranks of the case, and for what a GPU still has to do."""
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    dist.barrier()
