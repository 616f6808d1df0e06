"""The fastest configuration that fits, and all others in order."""

import gc
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from math import inf
from typing import Any

from toolkit.engines.strategies import Strategy
from toolkit.errors import UsageError
from toolkit.memory.hardware import GIB
from toolkit.model.flops import flops_per_token
from toolkit.planning.candidates import Candidate, Search
from toolkit.planning.cluster import Cluster
from toolkit.planning.timing import LeastTimes, Timing, time_step
from toolkit.prediction.calibration import NotCalibrated
from toolkit.program.readers.seconds import StepTime
from toolkit.program.settings import StepSettings

MORE_MEMORY = 8 * GIB


@dataclass(frozen=True)
class PlanRow:
    """One configuration and the time of its step."""

    candidate: Candidate
    timing: Timing
    cluster: Cluster

    @property
    def settings(self) -> StepSettings:
        """The configuration."""
        return self.candidate.settings

    @property
    def fits(self) -> bool:
        """Whether its peak fits the GPU."""
        return self.candidate.fits

    @property
    def peak(self) -> int:
        """Allocated bytes of a rank at the peak."""
        return self.candidate.peak

    @property
    def order_s(self) -> float:
        """Seconds that put rows in order; a figure only where the timing is calibrated."""
        return self.timing.middle.step_s

    @property
    def is_calibrated(self) -> bool:
        """Whether the middle is a figure to give."""
        return self.timing.beyond is None

    @property
    def range_s(self) -> tuple[float, float]:
        """Seconds of the step at the fast and the slow end of the calibration."""
        return self.timing.all.fastest.step_s, self.timing.all.slowest.step_s

    @property
    def step_s(self) -> tuple[float, float]:
        """Seconds at least and at most; twice the same where the calibration reaches."""
        return self.ends(lambda step: step.step_s)

    def ends(self, read: Callable[[StepTime], float]) -> tuple[float, float]:
        """Return the least and the most of a figure; twice the middle's where it is calibrated."""
        times = self.timing.all
        if self.is_calibrated:
            return read(times.middle), read(times.middle)
        figures = [read(step) for step in (times.fastest, times.middle, times.slowest)]
        return min(figures), max(figures)

    @property
    def tokens_per_step(self) -> int:
        """Tokens of all ranks."""
        step = self.settings
        return step.micro_batch_size * step.seq_len * step.grad_accum_steps * step.world_size

    def mfu(self, step_s: float) -> float:
        """Return model FLOPs utilisation at a step time (`toolkit.model.flops`)."""
        step = self.settings
        flops = self.tokens_per_step * flops_per_token(step.sizes, seq_len=step.seq_len)
        return flops / (step.world_size * self.cluster.peak_flops * step_s)

    def as_json(self) -> dict[str, Any]:
        """Return the row with the names that scripts rely on; null beyond the calibration."""
        step, middle = self.settings, self.timing.middle
        low, high = self.range_s

        def known(figure: float) -> float | None:
            return figure if self.is_calibrated else None

        return {
            "strategy": step.strategy,
            "accumulation": step.accumulation,
            "replica_groups": step.replicas,
            "micro_batch_size": step.micro_batch_size,
            "grad_accum_steps": step.grad_accum_steps,
            "world_size": step.world_size,
            "tokens_per_step": self.tokens_per_step,
            "seq_len": step.seq_len,
            "activation_checkpointing": step.activation_checkpointing,
            "loss": step.loss,
            "step_s": known(middle.step_s),
            "step_s_range": [low, high],
            "tokens_per_s": known(self.tokens_per_step / middle.step_s),
            "mfu": known(self.mfu(middle.step_s)),
            "mfu_range": [self.mfu(high), self.mfu(low)],
            "peak_bytes": self.peak,
            "fits": self.fits,
            "communication_s": known(middle.communication_s),
            "exposed_s": known(middle.exposed_s),
        }


@dataclass(frozen=True)
class Answer:
    """Rows that fit, the fastest first, then the others, the smallest peak first.

    Attributes:
        size: how many configurations stand behind the rows.
        skipped: why others were not timed.
    """

    cluster: Cluster
    rows: list[PlanRow]
    size: int
    skipped: list[str]

    @property
    def best(self) -> PlanRow | None:
        """The fastest that fits."""
        return self.rows[0] if self.rows and self.rows[0].fits else None

    def best_per_strategy(self) -> list[PlanRow]:
        """Return each strategy's fastest row."""
        found: dict[Strategy, PlanRow] = {}
        for row in self.rows:
            found.setdefault(row.settings.strategy, row)
        return list(found.values())


@dataclass(frozen=True)
class Change:
    """What the best would be if something were different; `best` is None where nothing fits."""

    name: str
    best: PlanRow | None


def find_answer(search: Search, cluster: Cluster) -> Answer:
    """Return the rows of a search on a cluster, without those that cannot be the best of theirs.

    The chunked loss and checkpointing compute as much or more for the same collectives: a shape
    whose largest micro-batch of all fits is not tried with them, nor is one whose computation alone
    would take longer than the best step of its strategy. Neither faster links nor more memory
    change that.

    Raises:
        UsageError: none can be timed; the message gives the reason.
    """
    rows: list[PlanRow] = []
    skipped: dict[str, None] = {}
    least = LeastTimes(cluster)
    best: dict[Strategy, float] = {}
    with _uncollected():
        for shape in search.shapes(cluster):
            try:
                for row in _rows(search, shape, cluster, least, best):
                    rows.append(row)
                    if row.fits:
                        best[shape.strategy] = min(row.order_s, best.get(shape.strategy, inf))
            except NotCalibrated as missing:
                skipped[str(missing)] = None
    if not rows:
        raise UsageError("; ".join(skipped))
    return Answer(cluster, _in_order(rows), search.size(cluster), list(skipped))


def _rows(
    search: Search,
    shape: StepSettings,
    cluster: Cluster,
    least: LeastTimes,
    best: Mapping[Strategy, float],
) -> Iterator[PlanRow]:
    for walks in search.variants(shape):
        if least.of(walks.settings(walks.sizes[-1])) >= best.get(shape.strategy, inf):
            continue
        row = _row(Candidate(walks, walks.largest(cluster.gpu)), cluster)
        yield row
        if row.candidate.is_largest:
            return


def _row(candidate: Candidate, cluster: Cluster) -> PlanRow:
    return PlanRow(candidate, time_step(candidate.settings, candidate.program, cluster), cluster)


def _in_order(rows: Iterable[PlanRow]) -> list[PlanRow]:
    """Put what fits first, by time, then the rest by memory."""
    return sorted(rows, key=lambda row: (not row.fits, row.order_s if row.fits else row.peak))


def changes(answer: Answer) -> list[Change]:
    """Return the best with links twice as fast, and with more memory on each GPU.

    There are none of the machine at hand, whose parts are given.
    """
    cluster = answer.cluster
    if cluster.speed is None:
        return []
    candidates = [row.candidate for row in answer.rows]
    if cluster.is_one_machine or cluster.between is None:
        rate = 2 * cluster.speed.link_bytes_per_s
        faster = replace(cluster, speed=replace(cluster.speed, link_bytes_per_s=rate))
        name = "links in the machine twice as fast"
    else:
        faster = replace(cluster, between=2 * cluster.between)
        name = "a link between machines twice as fast"
    gpu = replace(cluster.gpu, memory_bytes=cluster.gpu.memory_bytes + MORE_MEMORY)
    with _uncollected():
        return [
            Change(name, _best(candidates, faster)),
            Change(
                f"{MORE_MEMORY // GIB} GiB more on each GPU",
                _best([each.on(gpu) for each in candidates], replace(cluster, gpu=gpu)),
            ),
        ]


def _best(candidates: Sequence[Candidate], cluster: Cluster) -> PlanRow | None:
    rows = [_row(each, cluster) for each in candidates if each.fits]
    return min(rows, key=lambda row: row.order_s, default=None)


@contextmanager
def _uncollected() -> Iterator[None]:
    """Keep the collector from visiting every event again and again; none of them is in a cycle."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()
