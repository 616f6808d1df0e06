"""Signals that ask a run to save and end."""

import math
import os
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from threading import Thread
from typing import Any

from toolkit.launch.ownership import asking_signals

_LOOK_EVERY_S = 1.0
_ECHO_S = 0.2
"""A signal to a whole group of processes comes twice: by itself and passed on by the launcher."""


class Stopped(Exception):
    """All ranks have agreed to end, for the first signal's number that any of them got."""

    def __init__(self, number: int) -> None:
        self.name = signal.Signals(number).name
        super().__init__(self.name)


class StopRequest:
    """Whether a signal has asked this process to save and end.

    Attributes:
        number: the first signal's, or 0.
    """

    def __init__(self) -> None:
        self.number = 0
        self._is_ending = False

    def ignore_further(self) -> None:
        """The state is saved: from here a second signal has nothing to cut short."""
        self._is_ending = True

    @contextmanager
    def listening(self) -> Iterator[None]:
        """Take note of the first signal; at the second end the process, whatever it is doing.

        A thread reads the signals off a pipe that Python's handler writes to, since the main
        thread may be inside a call that does not return. Call it from the main thread.
        """
        read, write = os.pipe()
        os.set_blocking(write, False)
        wakeup = signal.set_wakeup_fd(write, warn_on_full_buffer=False)
        handlers = {number: signal.signal(number, _noted) for number in asking_signals()}
        thread = Thread(
            target=self._follow, args=(read, set(handlers)), name="signals", daemon=True
        )
        thread.start()
        try:
            yield
        finally:
            for number, handler in handlers.items():
                signal.signal(number, handler)
            signal.set_wakeup_fd(wakeup)
            os.close(write)
            thread.join()
            os.close(read)

    def _follow(self, pipe: int, asking: set[signal.Signals]) -> None:
        first = 0.0
        while number := os.read(pipe, 1):
            if number[0] not in asking or self._is_ending:
                continue
            if self.number:
                if time.monotonic() - first < _ECHO_S:
                    continue
                os._exit(128 + number[0])
            first = time.monotonic()
            self.number = number[0]


def _noted(number: int, frame: Any) -> None:
    """Python writes to the pipe for signals that have a handler."""


class Lookout:
    """Has all ranks end between pieces of work that each of them does as often as the others.

    They exchange their signals after the first piece, and then after as many as the slowest rank
    does in a second: all count alike, and the cost does not grow as pieces get short.

    Args:
        gather: `Ranks.gather_numbers`.
        stop: this rank's request.
    """

    def __init__(
        self, gather: Callable[[Sequence[float]], list[list[float]]], stop: StopRequest
    ) -> None:
        self._gather = gather
        self._stop = stop
        self._pieces = 0
        self._until_look = 1
        self._piece_s = math.inf
        self._looked = time.perf_counter()

    def __call__(self) -> None:
        """Count a piece of work, and look for signals when it is time; a collective then.

        Raises:
            Stopped: a rank was asked to end.
        """
        self._pieces += 1
        if self._pieces < self._until_look:
            return
        numbers, seconds = zip(*self._gather([self._stop.number, self._piece_s]), strict=True)
        if any(numbers):
            raise Stopped(int(max(numbers)))
        # One rank alone has nothing to exchange.
        self._until_look = max(1, int(_LOOK_EVERY_S / max(seconds))) if len(seconds) > 1 else 1
        # Now, since the exchange has also waited for what a GPU still had to do.
        now = time.perf_counter()
        self._piece_s = (now - self._looked) / self._pieces
        self._pieces, self._looked = 0, now
