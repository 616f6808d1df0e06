"""What works where nothing fits."""

from dataclasses import replace

from toolkit.engines.strategies import STRATEGIES
from toolkit.planning.answer import Answer, find_answer
from toolkit.planning.candidates import Search
from toolkit.planning.cluster import Cluster
from toolkit.planning.reason import describe

MOST_DOUBLINGS = 6


def nearest_that_fits(search: Search, answer: Answer) -> str:
    """Return the first of another strategy, another micro-batch and more GPUs that helps.

    Checkpointing and the chunked loss have been tried by then.
    """
    cluster = answer.cluster
    every = replace(search, strategies=STRATEGIES)
    if search != every and (best := find_answer(every, cluster).best):
        return f"another strategy does: {describe(best)}"
    free = replace(search, tokens=replace(search.tokens, only=None))
    if search != free and (best := find_answer(free, cluster).best):
        return f"another micro-batch does: {describe(best)}"
    for doublings in range(1, MOST_DOUBLINGS + 1):
        larger = _doubled(cluster, 2**doublings)
        if not search.tokens.micro_batches(
            seq_len=search.config.data.seq_len, world_size=larger.gpus
        ):
            break
        if best := find_answer(search, larger).best:
            return f"--gpus {larger.gpus} do: {describe(best)} (offload is not offered)"
    return (
        "take GPUs of more memory, or more GPUs with more --tokens-per-step (offload is not "
        "offered)"
    )


def _doubled(cluster: Cluster, factor: int) -> Cluster:
    """Return more machines, or more GPUs of a single one while no link between is known."""
    return replace(cluster, gpus=factor * cluster.gpus)
