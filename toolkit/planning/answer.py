"""The fastest configuration that fits, and all others in order."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from toolkit.engines.strategies import Strategy
from toolkit.memory.hardware import GIB
from toolkit.model.flops import flops_per_token
from toolkit.planning.candidates import Candidate, Search
from toolkit.planning.cluster import Cluster
from toolkit.planning.timing import Timing, time_step
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
    def tokens_per_step(self) -> int:
        """Tokens of all ranks."""
        step = self.settings
        return step.micro_batch_size * step.seq_len * step.grad_accum_steps * step.world_size

    def mfu(self, step_s: float) -> float:
        """Return model FLOPs utilisation at a step time (`toolkit.model.flops`)."""
        step = self.settings
        flops = self.tokens_per_step * flops_per_token(step.sizes, seq_len=step.seq_len)
        return flops / (step.world_size * self.cluster.speed.peak_flops * step_s)

    def as_json(self) -> dict[str, Any]:
        """Return the row with the names that scripts rely on; null beyond the calibration."""
        step, middle = self.settings, self.timing.middle
        low, high = self.timing.range_s

        def known(figure: float) -> float | None:
            return figure if self.timing.is_calibrated else None

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
    """

    cluster: Cluster
    rows: list[PlanRow]
    size: int

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
    """Return the rows of a search on a cluster."""
    candidates = search.candidates(cluster)
    return Answer(cluster, rank(candidates, cluster), search.size(cluster))


def rank(candidates: Sequence[Candidate], cluster: Cluster) -> list[PlanRow]:
    """Return candidates in order: what fits by time, then the rest by memory."""
    rows = [
        PlanRow(each, time_step(each.settings, each.program, cluster), cluster)
        for each in candidates
    ]
    return sorted(
        rows, key=lambda row: (not row.fits, row.order_s if row.fits else row.peak)
    )


def changes(search: Search, answer: Answer) -> list[Change]:
    """Return the best with links twice as fast, and with more memory on each GPU."""
    cluster = answer.cluster
    candidates = [row.candidate for row in answer.rows]
    if cluster.is_one_machine or cluster.between is None:
        speed = cluster.speed
        faster = replace(
            cluster, speed=replace(speed, link_bytes_per_s=2 * speed.link_bytes_per_s)
        )
        name = "links in the machine twice as fast"
    else:
        faster = replace(cluster, between=2 * cluster.between)
        name = "a link between machines twice as fast"
    gpu = replace(cluster.gpu, memory_bytes=cluster.gpu.memory_bytes + MORE_MEMORY)
    larger = replace(cluster, gpu=gpu)
    return [
        Change(name, _best(rank(candidates, faster))),
        Change(
            f"{MORE_MEMORY // GIB} GiB more on each GPU",
            _best(rank(search.with_gpu(candidates, gpu), larger)),
        ),
    ]


def _best(rows: Sequence[PlanRow]) -> PlanRow | None:
    return rows[0] if rows and rows[0].fits else None
