"""A reduce-scatter in which each rank is sent its part by all others, and adds them up itself.

Over gloo it takes half the time of the reduce-scatter that PyTorch makes of an all-reduce, and of
`all_to_all_single`, which over a slow link sends in one direction after the other: receiving
starts here before anything is sent.
"""

import math
from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist

from toolkit.engines.torch_internals import ReduceScatter, named_group


class Exchange(ReduceScatter):
    """What `FSDPModule.set_custom_reduce_scatter` takes, for one unit.

    FSDP2 asks it for the input, into which it copies gradients, and for the output, in which they
    are added up. With inputs in bf16, input and received parts together are smaller than fp32's
    input alone.

    Args:
        elements: of the unit, padded to equal slices: the size of the input.
        sent: the dtype of the input.
    """

    def __init__(self, elements: int, sent: torch.dtype) -> None:
        self.elements = elements
        self.sent = sent

    def allocate(
        self, size: Sequence[int | torch.SymInt], *, dtype: torch.dtype, device: torch.device
    ) -> torch.Tensor:
        """Return an empty tensor: what is as large as the unit is what is sent."""
        is_sent = math.prod(map(int, size)) == self.elements
        return torch.empty(*size, dtype=self.sent if is_sent else dtype, device=device)

    def __call__(
        self,
        output_tensor: torch.Tensor,
        input_tensor: torch.Tensor,
        group: dist.ProcessGroup,
        op: Any,
        async_op: bool = False,
    ) -> None:
        """Exchange the parts and sum up this rank's, in the order of the ranks."""
        ranks, rank = group.size(), group.rank()
        parts = input_tensor.view(ranks, -1)
        received = input_tensor.new_empty(ranks - 1, parts.shape[1])
        exchange(input_tensor, received, group.group_name)
        terms = [*received[:rank].unbind(), parts[rank], *received[rank:].unbind()]
        output_tensor.copy_(terms[0])
        for other in terms[1:]:
            output_tensor.add_(other)
        if op == dist.ReduceOp.AVG:
            output_tensor.div_(ranks)


# One operator, so that whoever counts collectives sees one.
@torch.library.custom_op("scaling_toolkit::exchange", mutates_args=("received",))
def exchange(whole: torch.Tensor, received: torch.Tensor, group_name: str) -> None:
    """Send each other rank its part of `whole`; receive its parts of this rank's, in rank order.

    Args:
        whole: as many equal parts as there are ranks, contiguous.
        received: [ranks - 1, elements of a part].
        group_name: of the process group, in PyTorch's registry.
    """
    group = named_group(group_name)
    parts = whole.view(group.size(), -1)
    others = [rank for rank in range(group.size()) if rank != group.rank()]
    receive = [
        dist.P2POp(dist.irecv, into, group=group, group_peer=rank)
        for rank, into in zip(others, received, strict=True)
    ]
    send = [dist.P2POp(dist.isend, parts[rank], group=group, group_peer=rank) for rank in others]
    for work in dist.batch_isend_irecv(receive + send):
        work.wait()


@exchange.register_fake
def _(whole: torch.Tensor, received: torch.Tensor, group_name: str) -> None:
    """Do nothing: shapes are given."""
