"""When collectives are issued and over, and for how long the computation stands still for each.

A collective that Python code waits for is exposed from then on until it is over. DDP's reducer
waits in C++, once the backward pass has its last gradient, with which the last bucket is issued:
what nobody has waited for when a phase ends is exposed from its last issue on, one after the other.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.distributed as dist

from toolkit.engines.clock import Clock, Mark
from toolkit.engines.collective_listener import CollectiveListener
from toolkit.engines.collectives import Collective, read_collective
from toolkit.engines.torch_internals import around_waits


@dataclass(eq=False)
class Timed:
    """One collective of this process.

    Attributes:
        phase: number of the phase in which it was issued.
        issued: when.
        work: its handle, until it is over.
        over: when it was, by whoever noticed.
        waits: from when to when something stood still for it.
    """

    what: Collective
    phase: int
    issued: Mark
    work: dist.Work | None
    over: list[Mark] = field(default_factory=list)
    waits: list[tuple[Mark, Mark]] = field(default_factory=list)


class TimedCollectives:
    """Times the collectives that this process issues inside the `with` block of `watching`.

    Attributes:
        phase: the number to note with each.
        timed: what was seen, in order.
    """

    def __init__(self, clock: Clock) -> None:
        self.clock = clock
        self.phase = -1
        self.timed: list[Timed] = []

    @contextmanager
    def watching(self) -> Iterator[None]:
        """See collectives, and what waits for them."""
        listener = CollectiveListener(self._heard)
        try:
            with around_waits(self._waiting):
                yield
        finally:
            listener.remove()

    def begin_phase(self) -> None:
        """Note what follows as the next phase's; a handle keeps its tensors, so few are kept."""
        self.phase += 1
        for timed in self.timed:
            if timed.over:
                timed.work = None

    def _heard(self, operator: Any, arguments: Any, result: Any) -> None:
        what = read_collective(operator, arguments, result, True)
        timed = Timed(what, self.phase, self.clock.now(), _work_of(result))
        self.timed.append(timed)
        self._note_end(timed)

    def _note_end(self, timed: Timed) -> None:
        # Some of gloo's collectives have no future.
        with suppress(RuntimeError):
            if timed.work is not None:
                done = timed.work.get_future()
                done.add_done_callback(lambda _: timed.over.append(self.clock.now()))

    @contextmanager
    def _waiting(self, work: dist.Work) -> Iterator[None]:
        since = self.clock.now()
        yield
        until = self.clock.now()
        for timed in reversed(self.timed):
            if timed.work is work:
                timed.over.append(until)
                timed.waits.append((since, until))
                timed.work = None
                return


def exposed(timed: Sequence[Timed], since: Mark, clock: Clock) -> list[tuple[float, float, float]]:
    """Return when each collective was issued and over, and its exposed seconds, from `since` on.

    Args:
        timed: all of one phase, in their order.
    """
    found = []
    reached = max((clock.seconds(since, each.issued) for each in timed), default=0.0)
    for each in timed:
        issued = clock.seconds(since, each.issued)
        over = min((clock.seconds(since, mark) for mark in each.over), default=issued)
        if each.waits:
            waits = [[clock.seconds(since, mark) for mark in wait] for wait in each.waits]
            stood = sum(max(0.0, min(over, until) - begun) for begun, until in waits)
        else:
            stood = max(0.0, over - reached)
            reached = max(reached, over)
        found.append((issued, over, stood))
    return found


def _work_of(result: Any) -> dist.Work | None:
    """Return the handle among what an operator returned; functional ones return none."""
    parts = result if isinstance(result, tuple) else (result,)
    handles = [part for part in parts if isinstance(part, torch.ScriptObject)]
    return dist.Work.unbox(handles[-1]) if handles else None
