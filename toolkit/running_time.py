"""Time that does not pass while a process is stopped."""

import time

_LONGEST_TICK_S = 1.0


class RunningTime:
    """A clock for limits: seconds since it was made, without those that the process was stopped.

    No clock of the system separates them, so it has to be read at least once a second: a longer
    gap counts as one second.
    """

    def __init__(self) -> None:
        self._seconds = 0.0
        self._read_at = time.monotonic()

    def read(self) -> float:
        """Return the seconds."""
        now = time.monotonic()
        self._seconds += min(now - self._read_at, _LONGEST_TICK_S)
        self._read_at = now
        return self._seconds
