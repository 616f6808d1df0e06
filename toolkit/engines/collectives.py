"""Collectives of a running program: kind, group, calls and payload, whoever issues them.

Every collective of `torch.distributed`, those of DDP's reducer, of FSDP2 and of DeepSpeed
included, is an operator that PyTorch dispatches, so a dispatch mode sees it before the backend
does. A payload is the whole tensor a rank takes part in: what is reduced, what is scattered before
it is, what is gathered once it is.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist

from toolkit.engines.torch_internals import TorchDispatchMode, process_group_of
from toolkit.engines.traffic import Kind, Traffic

_RESULT = -1
# Operator to kind, and the position of the argument that is the whole tensor, or a list of parts.
OPERATORS: dict[str, tuple[Kind, int]] = {
    "c10d::allreduce_": ("all_reduce", 0),
    "c10d::allreduce_coalesced_": ("all_reduce", 0),
    "c10d::_reduce_scatter_base_": ("reduce_scatter", 1),
    "c10d::reduce_scatter_": ("reduce_scatter", 1),
    "c10d::reduce_scatter_tensor_coalesced_": ("reduce_scatter", 1),
    "c10d::_allgather_base_": ("all_gather", 0),
    "c10d::allgather_": ("all_gather", 0),
    "c10d::allgather_into_tensor_coalesced_": ("all_gather", 0),
    "c10d::reduce_": ("other", 0),
    "c10d::broadcast_": ("other", 0),
    "c10d::alltoall_": ("all_to_all", 1),
    "c10d::alltoall_base_": ("all_to_all", 1),
    "c10d::gather_": ("other", 0),
    "c10d::scatter_": ("other", 0),
    "_c10d_functional::all_reduce": ("all_reduce", 0),
    "_c10d_functional::all_reduce_": ("all_reduce", 0),
    "_c10d_functional::reduce_scatter_tensor": ("reduce_scatter", 0),
    "_c10d_functional::all_gather_into_tensor": ("all_gather", _RESULT),
}


@dataclass(frozen=True)
class Collective:
    """One call: its kind, the elements and bytes per element of its payload, and who took part."""

    kind: Kind
    elements: int
    itemsize: int
    ranks: tuple[int, ...]
    at_boundary: bool
    dtype: torch.dtype | None = None


def read_collective(
    operator: Any, arguments: Sequence[Any], result: Any, at_boundary: bool
) -> Collective:
    """Return what one call of an operator among `OPERATORS` moved.

    Args:
        operator: the overload that was called.
        arguments: its positional ones.
        result: what it returned.
        at_boundary: kept as it is.
    """
    kind, whole = OPERATORS[operator.name().partition(".")[0]]
    payload = list(_tensors(result if whole == _RESULT else arguments[whole]))
    return Collective(
        kind,
        elements=sum(tensor.numel() for tensor in payload),
        itemsize=payload[0].element_size(),
        ranks=tuple(dist.get_process_group_ranks(process_group_of(arguments))),
        at_boundary=at_boundary,
        dtype=payload[0].dtype,
    )


class CollectiveCounter(TorchDispatchMode):
    """Keep a list of the collectives that this process issues inside the `with` block.

    Args:
        at_boundary: asked at each collective; whether the window's earlier micro-steps are over.
    """

    def __init__(self, at_boundary: Callable[[], bool] = lambda: True) -> None:
        super().__init__()
        self.at_boundary = at_boundary
        self.seen: list[Collective] = []

    @classmethod
    def is_infra_mode(cls) -> bool:
        """Whether compiled code may run unseen; it holds no collectives, those are around it."""
        return True

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        if func.name().partition(".")[0] in OPERATORS:
            self.seen.append(read_collective(func, args, result, self.at_boundary()))
        return result

    def traffic(self, kind: Kind, *, above: int = 0) -> Traffic:
        """Return calls, bytes and group sizes of one kind.

        Args:
            kind: which.
            above: payloads of at most this many elements are skipped, such as a loss or a norm.
        """
        found = [call for call in self.seen if call.kind == kind and call.elements > above]
        return Traffic(
            calls=len(found),
            bytes=sum(call.elements * call.itemsize for call in found),
            group_sizes=tuple(sorted({len(call.ranks) for call in found})),
        )


def _tensors(argument: torch.Tensor | Sequence[Any]) -> Iterator[torch.Tensor]:
    """Tensors of an argument that is one, a list of them, or a list of one list per tensor."""
    if isinstance(argument, torch.Tensor):
        yield argument
        return
    for part in argument:
        yield from _tensors(part)
