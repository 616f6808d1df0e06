"""When something happened: on a CPU as the host sees it, on a GPU as its own streams do."""

import time
from typing import Any, Protocol

import torch

Mark = Any
"""A moment, as its clock keeps it."""


class Clock(Protocol):
    """Marks moments, and returns the seconds between two of them afterwards."""

    def now(self) -> Mark:
        """Mark this moment."""

    def seconds(self, since: Mark, mark: Mark) -> float:
        """Return the seconds from one mark to another."""


class HostClock:
    """The process's own clock."""

    def now(self) -> Mark:
        """Return the seconds of a clock that only runs forward."""
        return time.perf_counter()

    def seconds(self, since: Mark, mark: Mark) -> float:
        """Return their difference."""
        return float(mark - since)


class DeviceClock:
    """Events in the stream that is current: what was started before them is over then."""

    def now(self) -> Mark:
        """Record an event."""
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        return event

    def seconds(self, since: Mark, mark: Mark) -> float:
        """Wait for the later event, and return what the device measured."""
        mark.synchronize()
        return float(since.elapsed_time(mark)) / 1e3


def clock_of(device: torch.device) -> Clock:
    """Return the clock of what runs on a device."""
    return DeviceClock() if device.type == "cuda" else HostClock()
