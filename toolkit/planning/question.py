"""From options to a question: a run, the tokens of its step, a cluster, the strategies."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from toolkit.batching import BatchPlan
from toolkit.config import RunConfig
from toolkit.engines.strategies import Strategy, missing_engine
from toolkit.errors import UsageError
from toolkit.memory.largest import StepTokens
from toolkit.planning.batch import solve_batch
from toolkit.planning.candidates import Search
from toolkit.planning.cluster import Cluster, ClusterFile, build_cluster


@dataclass(frozen=True, kw_only=True)
class Question:
    """What is asked.

    Attributes:
        solved: the batch, where one of its numbers was solved for.
    """

    search: Search
    cluster: Cluster
    solved: BatchPlan | None

    def as_json(self) -> dict[str, Any]:
        """Return the question with the names that scripts rely on."""
        cluster = self.cluster
        between = None if cluster.between is None else f"{8 * cluster.between / 1e9:g}Gbit"
        return {
            "gpu": cluster.gpu.name,
            "gpus": cluster.gpus,
            "per_machine": cluster.per_machine,
            "between_machines": between,
            "tokens_per_step": self.search.tokens.wanted,
            "parameters": self.search.config.model.sizes().parameter_count,
        }


@dataclass(frozen=True, kw_only=True)
class Dials:
    """The numbers of a batch as they were given; None where they were not."""

    tokens_per_step: int | None
    micro_batch_size: int | None
    grad_accum_steps: int | None
    gpus: int | None


def build_question(
    run: RunConfig,
    dials: Dials,
    machine: ClusterFile,
    *,
    per_machine: int | None,
    between: str | None,
    strategies: Sequence[Strategy],
    measure: Callable[[int], Cluster] | None = None,
) -> Question:
    """Return the question, its missing number solved for.

    Args:
        measure: gives the machine at hand for a number of ranks, in place of `machine`.

    Raises:
        UsageError: as `solve_batch` and `build_cluster`; or no micro-batch cuts the step.
    """
    gpus, tokens = dials.gpus or _whole_cluster(machine), dials.tokens_per_step
    size, solved = dials.micro_batch_size, None
    if gpus is None or dials.grad_accum_steps is not None:
        solved = solve_batch(
            tokens_per_step=tokens,
            seq_len=run.data.seq_len,
            micro_batch_size=size,
            grad_accum_steps=dials.grad_accum_steps,
            gpus=gpus,
        )
        gpus, tokens, size = solved.world_size, solved.tokens_per_step, solved.micro_batch_size
    if measure is not None:
        cluster = measure(gpus)
        strategies = [name for name in strategies if missing_engine(name) is None]
    else:
        cluster = build_cluster(machine, gpus=gpus, per_machine=per_machine, between=between)
    step = StepTokens(wanted=tokens or run.batch.tokens_per_step, is_fixed=True, only=size)
    if not step.micro_batches(seq_len=run.data.seq_len, world_size=gpus):
        raise UsageError(_uncut(step, run.data.seq_len, gpus))
    search = Search(run, step, strategies)
    if not any(True for _ in search.shapes(cluster)):
        raise UsageError(f"none of {', '.join(strategies)} runs on {gpus} GPUs")
    return Question(search=search, cluster=cluster, solved=solved)


def _whole_cluster(machine: ClusterFile) -> int | None:
    return None if machine.machines is None else machine.machines * machine.per_machine


def _uncut(step: StepTokens, seq_len: int, gpus: int) -> str:
    wave = seq_len * gpus * (step.only or 1)
    nearest = max(1, round(step.wanted / wave)) * wave
    size = "" if step.only is None else f"{step.only} x "
    return (
        f"{step.wanted:,} tokens per step are no multiple of {size}{seq_len:,} x {gpus:,} GPUs = "
        f"{wave:,}; the nearest that works is --tokens-per-step {nearest}"
    )
