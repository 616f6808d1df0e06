"""Whether ranks that must hold the same bits do, cheaply enough to ask during a run.

Replicas stay identical because they start equal and apply equal updates; nothing in an engine ever
looks. Each rank adds up the bits of every tensor, the sums are gathered, and a rank that differs is
named: by majority from three ranks on, while two can only be distinguished.
"""

from collections import Counter
from collections.abc import Sequence

import torch
import torch.distributed as dist

from toolkit.engines.engine import Engine
from toolkit.errors import UntrustedError


def check_replicas(engine: Engine) -> None:
    """Compare the parameters of all ranks that should hold the same; a collective.

    Raises:
        UntrustedError: names the ranks that differ and the first parameter they differ in.
    """
    problems = replica_problems(engine)
    if problems:
        raise UntrustedError(
            f"replicas have drifted apart though all made the same updates: {'; '.join(problems)}; "
            "suspect that rank's memory, and resume from the last checkpoint"
        )


def replica_problems(engine: Engine) -> list[str]:
    """Return a sentence for each group of replicas that are not the same bits; a collective."""
    groups = engine.state.replica_groups()
    if not groups:
        return []
    names = [name for name, _ in engine.module.named_parameters()]
    own = torch.stack([_bits(tensor) for tensor in engine.state.replicated_tensors()])
    sums = [torch.empty_like(own) for _ in range(engine.world_size)]
    dist.all_gather(sums, own)
    rows = [tuple(row.tolist()) for row in sums]
    found = (describe_drift({rank: rows[rank] for rank in group}, names) for group in groups)
    return [problem for problem in found if problem]


def describe_drift(sums: dict[int, tuple[int, ...]], names: Sequence[str]) -> str | None:
    """Return which ranks differ from the most common sums, and where; None if all are equal.

    Args:
        sums: for each rank of a group, one integer per parameter.
        names: of the parameters.
    """
    (common, count), *others = Counter(sums.values()).most_common()
    if not others:
        return None
    differing = [rank for rank, found in sums.items() if found != common]
    first = next(
        name
        for name, values in zip(names, zip(*sums.values(), strict=True), strict=True)
        if len(set(values)) > 1
    )
    if 2 * count <= len(sums):
        ranks = ", ".join(str(rank) for rank in sums)
        return f"ranks {ranks} differ, without a majority, first in {first}"
    ranks = ", ".join(str(rank) for rank in differing)
    who = f"rank {ranks} differs" if len(differing) == 1 else f"ranks {ranks} differ"
    return f"{who} from the {count} others, first in {first}"


def _bits(tensor: torch.Tensor) -> torch.Tensor:
    """Sum of the bits read as integers: one changed value changes it."""
    integer = {2: torch.int16, 4: torch.int32}[tensor.element_size()]
    return tensor.detach().contiguous().view(integer).sum(dtype=torch.int64)
