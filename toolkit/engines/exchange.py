"""A reduce-scatter that sends bf16 and sums in fp32: each rank is sent its part by all others."""

import math
from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist

from toolkit.engines.torch_internals import ReduceScatter


class Bf16Exchange(ReduceScatter):
    """What `FSDPModule.set_custom_reduce_scatter` takes, for one unit.

    FSDP2 asks it for the input, into which it copies gradients, and for the output; the input is
    made in bf16 here, so input and received parts together are as large as fp32's input alone.

    Args:
        elements: of the unit, padded to equal slices: the size of the input.
    """

    def __init__(self, elements: int) -> None:
        self.elements = elements

    def allocate(
        self, size: Sequence[int | torch.SymInt], *, dtype: torch.dtype, device: torch.device
    ) -> torch.Tensor:
        """Return an empty tensor: what is as large as the unit is what is sent."""
        is_sent = math.prod(map(int, size)) == self.elements
        return torch.empty(*size, dtype=torch.bfloat16 if is_sent else dtype, device=device)

    def __call__(
        self,
        output_tensor: torch.Tensor,
        input_tensor: torch.Tensor,
        group: dist.ProcessGroup,
        op: Any,
        async_op: bool = False,
    ) -> None:
        """Exchange the parts and sum up this rank's, in the order of the ranks."""
        received = torch.empty_like(input_tensor)
        dist.all_to_all_single(received, input_tensor, group=group)
        first, *others = received.view(group.size(), -1)
        output_tensor.copy_(first)
        for other in others:
            output_tensor.add_(other)
        if op == dist.ReduceOp.AVG:
            output_tensor.div_(group.size())
