"""One configuration on more and more GPUs: weak and strong scaling."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from toolkit.errors import UsageError
from toolkit.planning.answer import PlanRow
from toolkit.planning.candidates import Candidate, replica_groups
from toolkit.planning.largest import Walks
from toolkit.planning.timing import time_step

Scaling = Literal["weak", "strong"]
MOST_GPUS = 8192


@dataclass(frozen=True)
class Point:
    """One number of GPUs.

    Attributes:
        efficiency: tokens per second and GPU, of those of the first point, at least and at most.
        exposed: share of the step that waits for communication, at least and at most.
    """

    row: PlanRow
    efficiency: tuple[float, float]
    exposed: tuple[float, float]

    @property
    def gpus(self) -> int:
        """GPUs of all machines."""
        return self.row.settings.world_size


def curve(best: PlanRow, scaling: Scaling) -> list[Point]:
    """Return the best configuration on powers of two of its machines' GPUs.

    Weak scaling leaves every GPU its micro-batch and micro-steps, so that the step grows; strong
    scaling leaves the step its tokens, so that micro-steps become fewer, then the micro-batch
    smaller, until a GPU has one sequence.

    Raises:
        UsageError: the link between machines is not known.
    """
    if best.cluster.between is None:
        raise UsageError(
            "--curve gpus: give the link of a machine, as in --between-machines 400Gbit"
        )
    rows = [row for gpus in _counts(best) if (row := _row(best, gpus, scaling)) is not None]
    return [_point(row, rows[0]) for row in rows]


def takes_over(points: Sequence[Point]) -> int | None:
    """Return from how many GPUs on at least half of a step waits for communication."""
    return next((point.gpus for point in points if point.exposed[0] >= 0.5), None)


def _counts(best: PlanRow) -> Iterator[int]:
    gpus = min(best.cluster.per_machine, best.cluster.gpus)
    while gpus <= MOST_GPUS:
        yield gpus
        gpus *= 2


def _row(best: PlanRow, gpus: int, scaling: Scaling) -> PlanRow | None:
    """Return the configuration on so many GPUs; None where it cannot be cut so, or does not fit."""
    cluster = replace(best.cluster, gpus=gpus)
    step, tokens = best.settings, best.candidate.walks.tokens
    groups = replica_groups(step.strategy, cluster)
    if not groups:
        return None
    per_gpu = best.tokens_per_step // step.world_size
    if scaling == "weak":
        tokens = replace(tokens, wanted=gpus * per_gpu, only=step.micro_batch_size)
    else:
        per_gpu, rest = divmod(best.tokens_per_step, gpus)
        if rest or per_gpu % step.seq_len:
            return None
        tokens = replace(tokens, only=None)
    walks = Walks(replace(step, world_size=gpus, replicas=groups[-1]), tokens)
    fitting = [n for n in walks.sizes if n <= step.micro_batch_size]
    candidate = Candidate(walks, fitting[-1])
    if not cluster.gpu.holds(candidate.peak):
        return None
    return PlanRow(candidate, time_step(candidate.settings, candidate.program, cluster), cluster)


def _point(row: PlanRow, first: PlanRow) -> Point:
    per_gpu = row.tokens_per_step / row.cluster.gpus
    of_first = first.tokens_per_step / first.cluster.gpus
    ratios = [
        per_gpu / of_first * start_s / step_s
        for step_s, start_s in zip(row.range_s, first.range_s, strict=True)
    ]
    return Point(
        row=row,
        efficiency=(min(ratios), max(ratios)),
        exposed=row.ends(lambda step: step.exposed_s / step.step_s),
    )
