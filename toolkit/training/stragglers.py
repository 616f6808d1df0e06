"""Which rank the others wait for, and which computes more slowly than they do."""

import time
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

import torch

from toolkit.engines.engine import Engine
from toolkit.training.callback import Callback, Log, Progress

EVERY = 50
"""Steps between two looks."""
_LATE = 0.1
"""Share of a step for which the others wait that is worth a word."""
_SLOW = 1.5
"""Times the others' median; clocks of healthy devices of one kind differ by a few percent."""
_REPEATS = 8


@dataclass(frozen=True)
class Pace:
    """How one rank did since the last look.

    Attributes:
        waited_s: seconds per step in the loop's own reductions. Whoever comes last waits least.
        product_s: seconds for a fixed product of matrices, which no other rank has a part in.
    """

    waited_s: float
    product_s: float


class Stragglers(Callback):
    """Compares the ranks of a run every `EVERY` steps.

    Within forward and backward ranks wait for each other inside the engine, where a slow one cannot
    be distinguished from one that waits; there the product of matrices stands in. On a GPU the host
    does not wait for a reduction, so the product is all there is to see.
    """

    def __init__(self, engine: Engine, log: Log) -> None:
        self.engine = engine
        self.log = log
        self._steps = 0
        self._start_anew()

    def _start_anew(self) -> None:
        self._started = time.perf_counter()
        self._waited_before = self.engine.ranks.waited_s

    def after_step(self, progress: Progress, numbers: Sequence[float]) -> None:
        """Count a step; when it is time, warn of each slow rank. A collective then."""
        self._steps += 1
        if self.engine.world_size == 1 or self._steps % EVERY:
            return
        step_s = (time.perf_counter() - self._started) / EVERY
        waited_s = (self.engine.ranks.waited_s - self._waited_before) / EVERY
        pace = Pace(waited_s, _time_product(self.engine.device))
        for sentence in judge(self.engine.ranks.gather(pace), step_s=step_s):
            self.log(f"warning: {sentence}")
        self._start_anew()


def judge(paces: list[Pace], *, step_s: float) -> list[str]:
    """Return a sentence for each rank that is late or slow, by the median of the others.

    Args:
        paces: of at least two ranks, in their order.
        step_s: seconds per step, waiting included.
    """
    found = []
    for rank, pace in enumerate(paces):
        others = paces[:rank] + paces[rank + 1 :]
        late_s = median(other.waited_s for other in others) - pace.waited_s
        if late_s > _LATE * step_s:
            found.append(
                f"rank {rank} is late: the others wait for it {1e3 * late_s:.0f} of the "
                f"{1e3 * step_s:.0f} ms that a step takes"
            )
        times = pace.product_s / median(other.product_s for other in others)
        if times > _SLOW:
            found.append(f"rank {rank} takes {times:.1f} times as long as the others to compute")
    return found


def _time_product(device: torch.device) -> float:
    """Return the shortest of a few times, which is the least disturbed."""
    size = 2048 if device.type == "cuda" else 256
    matrix = torch.ones(size, size, device=device)
    seconds = []
    for _ in range(_REPEATS):
        started = time.perf_counter()
        (matrix @ matrix)[0, 0].item()
        seconds.append(time.perf_counter() - started)
    return min(seconds)
