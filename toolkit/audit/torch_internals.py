"""What PyTorch does not document and an audit reads: the one place in it that reaches for it.

Read in torch 2.13.0: `torch/distributed/fsdp/_flat_param.py`, `torch/distributed/tensor/_utils.py`,
`torch/utils/_pytree.py`, `torch/utils/_python_dispatch.py`, `torch/nn/modules`,
`tools/autograd/derivatives.yaml`. In a release that has something elsewhere, the watch ends and
its report names what is missing; the script runs as it would.
"""

import math
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any, NamedTuple

import torch
from torch import nn
from torch.utils._python_dispatch import _disable_current_modes
from torch.utils._pytree import tree_leaves

__all__ = ["tree_leaves"]

READ_IN = "2.13.0"


class Flat(NamedTuple):
    """A parameter that FSDP1 made of several and has sharded.

    Attributes:
        parameter: the leaf that backward reaches, which keeps this rank's shard.
        originals: name and number of elements of each that is a parameter still.
        elements: of the whole.
        start: of this rank's shard in it.
        is_sharded: whether a rank holds a shard and not all.
    """

    parameter: Any
    originals: list[tuple[str, nn.Parameter, int]]
    elements: int
    start: int
    is_sharded: bool


def flats_of(root: nn.Module, kind: type[nn.Module]) -> Iterator[Flat]:
    """Yield the flat parameters of all FSDP1 units of a model; `kind` is FSDP1's class."""
    for prefix, unit in root.named_modules():
        handle: Any = unit._handle if isinstance(unit, kind) else None
        if handle is None:
            continue
        flat = handle.flat_param
        names = (f"{prefix}.{name}".removeprefix(".") for name in flat._fqns)
        kept = zip(names, flat._params or (), flat._numels, strict=False)
        start = handle.rank * flat._sharded_size.numel() if handle.uses_sharded_strategy else 0
        whole = flat._unpadded_unsharded_size.numel()
        yield Flat(flat, list(kept), whole, start, handle.uses_sharded_strategy)


def sharded_and_whole(unit: Any) -> Iterator[tuple[Any, Any]]:
    """Yield each parameter that `fully_shard` has sharded, and the leaf that backward reaches."""
    group = unit._get_fsdp_state()._fsdp_param_group
    for part in group.fsdp_params if group is not None else ():
        if hasattr(part, "_unsharded_param"):  # made by the first gather
            yield part.sharded_param, part._unsharded_param


def start_of_shard(tensor: Any) -> int | None:
    """Return where a DTensor's part on this rank begins in the flattened whole.

    None where it is sharded by another dimension than the first.
    """
    from torch.distributed.tensor._utils import compute_local_shape_and_global_offset

    _, offset = compute_local_shape_and_global_offset(
        tensor.shape, tensor.device_mesh, tensor.placements
    )
    if any(offset[1:]):
        return None
    return offset[0] * math.prod(tensor.shape[1:]) if offset else 0


def without_modes() -> AbstractContextManager[None]:
    """Keep what is computed here from the modes that the script has entered, and them from it."""
    entered = torch._C._len_torch_dispatch_stack() + torch._C._len_torch_function_stack()
    return _leave_modes() if entered else nullcontext()


@contextmanager
def _leave_modes() -> Iterator[None]:
    with torch._C.DisableTorchFunction(), _disable_current_modes():
        yield


def is_compiled_in_place(module: nn.Module) -> bool:
    """Whether `module.compile()` was called."""
    return getattr(module, "_compiled_call_impl", None) is not None


def other_factor(node: Any) -> torch.Tensor | None:
    """Return what a product or quotient's first operand was multiplied with or divided by."""
    return node._saved_other


def reduction(node: Any) -> int:
    """Return a loss node's reduction as ATen numbers it."""
    return node._saved_reduction


def total_weight(node: Any) -> torch.Tensor:
    """Return the weight of all targets of a negative log likelihood that count."""
    return node._saved_total_weight
