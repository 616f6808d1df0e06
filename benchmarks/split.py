"""Where the time of a step goes: forward, backward, exposed communication, optimizer.

Communication is exposed while a collective holds computation up, and counts in no phase but its
own, so that the four parts sum to the step. How it is found depends on the device:

- On a CPU one thread drives a step: it computes both passes and blocks where the result of a
  collective is due, while other threads of gloo move the data. What passes on the clock without
  passing on that thread's processor time is exposed. That includes being displaced by gloo's
  threads where cores are few, and by other programs, so it takes a quiet machine; the same figure
  of a single process shows how quiet.
- On a GPU, kernels of collectives run beside others. What the profiler records of them while no
  other kernel runs is exposed.

The device is synchronised between phases, and a GPU is profiled; neither is done in steps that are
timed.
"""

import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import nullcontext
from typing import Any, NamedTuple

import torch
from torch.profiler import ProfilerActivity, profile

from benchmarks.record import Split
from toolkit.engines.engine import Engine
from toolkit.training.callback import Callback, Phase

NS = 1e-9
_COLLECTIVE = "nccl"
"""All kernels of NCCL, and of RCCL, have names that begin with it."""


class Interval(NamedTuple):
    """A span of time in nanoseconds since the epoch."""

    start: int
    end: int


class Turn(NamedTuple):
    """One unbroken stretch of a phase, and the seconds of it that the thread computed."""

    phase: Phase
    span: Interval
    busy_s: float


class PhaseClock(Callback):
    """Follows a step through its phases; `stop` ends the last one.

    What an engine still does once the last micro-batch is through, such as reducing a whole
    window's gradients, belongs to the backward pass.
    """

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.turns: list[Turn] = []
        self._started: tuple[Phase, int, float] | None = None

    def on_phase(self, phase: Phase) -> None:
        """End the current phase, if there is one, and start another."""
        self.stop()
        self._started = (phase, time.time_ns(), time.thread_time())

    def stop(self) -> None:
        """End the current phase."""
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)
        if self._started is not None:
            phase, start, busy = self._started
            span = Interval(start, time.time_ns())
            self.turns.append(Turn(phase, span, time.thread_time() - busy))
        self._started = None


def measure_split(
    engine: Engine, run_step: Callable[[Sequence[Callback]], object], *, steps: int
) -> Split:
    """Return the mean seconds per step of each part, over some steps on this rank.

    Args:
        engine: the case's.
        run_step: updates once, with the callbacks that it is given.
        steps: how many.
    """
    clock = PhaseClock(engine.device)
    on_gpu = engine.device.type == "cuda"
    watch = profile(activities=[ProfilerActivity.CUDA]) if on_gpu else nullcontext()
    with watch as recorded:
        for _ in range(steps):
            clock.on_phase("forward")
            run_step([clock])
            clock.stop()
    kernels = _kernels(recorded) if recorded is not None else None
    return split_turns(clock.turns, kernels, steps=steps)


def split_turns(
    turns: Sequence[Turn], kernels: Sequence[tuple[str, Interval]] | None, *, steps: int
) -> Split:
    """Return the mean seconds per step of each part.

    Args:
        turns: the phases of all steps.
        kernels: name and time of all that ran on a GPU, or None where a CPU computed.
        steps: their number.
    """
    seconds = {"forward": 0.0, "backward": 0.0, "optimizer": 0.0}
    exposed_s = 0.0
    every = _merge(span for _, span in kernels or ())
    others = _merge(span for name, span in kernels or () if not name.startswith(_COLLECTIVE))
    for phase, span, busy_s in turns:
        wall_s = (span.end - span.start) * NS
        if kernels is None:
            waited_s = max(0.0, wall_s - busy_s)
        else:
            # When something ran less when anything but a collective did.
            waited_s = (_covered(span, every) - _covered(span, others)) * NS
        seconds[phase] += wall_s - waited_s
        exposed_s += waited_s
    return Split(
        forward_s=seconds["forward"] / steps,
        backward_s=seconds["backward"] / steps,
        communication_s=exposed_s / steps,
        optimizer_s=seconds["optimizer"] / steps,
    )


def _merge(spans: Iterable[Interval]) -> list[Interval]:
    """Return the union of spans as spans apart from each other, in order."""
    merged: list[Interval] = []
    for span in sorted(spans):
        if merged and span.start <= merged[-1].end:
            merged[-1] = Interval(merged[-1].start, max(merged[-1].end, span.end))
        else:
            merged.append(span)
    return merged


def _covered(window: Interval, spans: Sequence[Interval]) -> int:
    """Return how much of a window spans cover that lie apart from each other."""
    return sum(max(0, min(window.end, end) - max(window.start, start)) for start, end in spans)


def _kernels(recorded: profile) -> list[tuple[str, Interval]]:
    """Return what ran on the GPU: kernels, copies and fills."""
    profiler: Any = recorded.profiler
    return [
        (event.name(), Interval(event.start_ns(), event.end_ns()))
        for event in profiler.kineto_results.events()
        if event.device_type() == torch.autograd.DeviceType.CUDA and not event.is_user_annotation()
    ]
