"""Signals that ask a run to save and end."""

import ctypes
import os
import signal
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from threading import Thread
from typing import Any

SIGNALS = (signal.SIGTERM, signal.SIGUSR1, signal.SIGINT)
_PR_SET_PDEATHSIG = 1  # linux/prctl.h
_ECHO_S = 0.2
"""A signal to a whole group of processes comes twice: by itself and passed on by the launcher."""


class StopRequest:
    """Whether a signal has asked this process to save and end.

    Attributes:
        signal: the first signal's name, or None.
    """

    def __init__(self) -> None:
        self.signal: str | None = None
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
        handlers = {number: signal.signal(number, _noted) for number in SIGNALS}
        thread = Thread(target=self._follow, args=(read,), name="signals", daemon=True)
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

    def _follow(self, pipe: int) -> None:
        first = 0.0
        while number := os.read(pipe, 1):
            if number[0] not in SIGNALS or self._is_ending:
                continue
            if self.signal:
                if time.monotonic() - first < _ECHO_S:
                    continue
                os._exit(128 + number[0])
            first = time.monotonic()
            self.signal = signal.Signals(number[0]).name


def _noted(number: int, frame: Any) -> None:
    """Python writes to the pipe for signals that have a handler."""


def follow_launcher(environment: Mapping[str, str]) -> None:
    """Be asked to end when the launcher dies, on Linux; its children would train on as orphans."""
    if sys.platform == "linux" and "ACCELERATE_MIXED_PRECISION" in environment:
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
