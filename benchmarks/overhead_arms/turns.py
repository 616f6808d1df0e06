"""Arms take turns on the same cores: all are started once, and all but one wait.

The driver keeps a key-value store; waiting for a key costs an arm nothing.
"""

import json
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from datetime import timedelta

import torch
import torch.distributed as dist

_LONGEST_WAIT = timedelta(minutes=30)


@dataclass(frozen=True)
class Turn:
    """What an arm did in one turn: seconds of each timed step, and the mean loss of all steps."""

    step_s: list[float]
    loss: float


class Turns:
    """An arm's side, on every rank; call `before_step` at the top of the loop.

    Args:
        port: of the driver's store on this machine.
        arm: its name.
        steps_per_turn: the first step of a turn is not timed: it finds the caches cold.
    """

    def __init__(self, *, port: int, arm: str, steps_per_turn: int) -> None:
        self.store = dist.TCPStore("127.0.0.1", port, is_master=False, timeout=_LONGEST_WAIT)
        self.arm = arm
        self.steps_per_turn = steps_per_turn
        self._losses: list[float] = []
        self._marks: list[float] = []

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
            self._end(turn - 1)
            self._wait(turn)
        elif within == 1:
            _synchronise()
        self._marks.append(time.perf_counter())

    def _end(self, turn: int) -> None:
        if turn < 0:
            return
        _synchronise()
        started = self._marks[1:]
        ended = [*started[1:], time.perf_counter()]
        step_s = [end - start for start, end in zip(started, ended, strict=True)]
        if dist.get_rank() == 0:
            loss = sum(self._losses) / len(self._losses)
            self.store.set(_done(self.arm, turn), json.dumps(asdict(Turn(step_s, loss))))
        self._losses.clear()

    def _wait(self, turn: int) -> None:
        self._marks.clear()
        key = f"{self.arm}/{turn}/go"
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
        """Where arms find the store."""
        return self.store.port

    def go(self, arm: str, turn: int) -> None:
        """Let an arm have its turn."""
        self.store.set(f"{arm}/{turn}/go", b"go")

    def stop(self, arm: str, turn: int) -> None:
        """Let an arm end instead of having a turn."""
        self.store.set(f"{arm}/{turn}/go", b"stop")

    def result(self, arm: str, turn: int, *, alive: Callable[[], None]) -> Turn:
        """Wait for an arm to have had its turn; `alive` raises where it cannot any more."""
        key = _done(arm, turn)
        while not self.store.check([key]):
            alive()
            time.sleep(0.05)
        return Turn(**json.loads(self.store.get(key)))


def _done(arm: str, turn: int) -> str:
    return f"{arm}/{turn}/done"


def _synchronise() -> None:
    """Wait for all ranks of the arm, and for what a GPU still has to do."""
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    dist.barrier()
