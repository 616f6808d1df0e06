"""What PyTorch does not document and this toolkit needs: the one place that reaches for it.

Read in torch 2.13.0: `torch/distributed/fsdp/_fully_shard`, `torch/utils/_python_dispatch.py`,
`torch/distributed/distributed_c10d.py`, `torch/_subclasses/fake_tensor.py`,
`torch/distributed/_tools`, `torch/testing/_internal/distributed/fake_pg.py`,
`torch/_inductor/cpp_builder.py`, `torch/amp/grad_scaler.py`, `c10/util/Logging.cpp`,
`torch/library.py`, `torch/cuda/_pin_memory_utils.py`.
"""

import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from ctypes import CDLL, c_int
from datetime import timedelta
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy
from torch.distributed.fsdp._fully_shard._fsdp_api import ReduceScatter
from torch.utils._python_dispatch import TorchDispatchMode

from toolkit.engines.attributes import check_attributes

__all__ = ["FakeTensor", "FakeTensorMode", "ReduceScatter", "TorchDispatchMode"]

READ_IN = "2.13.0"
STATE = ("_fsdp_param_group", "_mp_policy")
GROUP = (
    "_partial_reduce_output",
    "_reduce_scatter_comm",
    "fsdp_params",
    "mesh_info",
    "post_forward_mesh_info",
)
PARAMETER = (
    "unsharded_accumulated_grad",
    "_unsharded_param",
    "sharded_param",
    "padded_sharded_param_size",
)
SCALER_STATE = "_growth_tracker"
"""The key in `GradScaler.state_dict()` that counts the updates since the scale last changed."""

_NATIVE_ERROR = 2


def all_groups() -> list[dist.ProcessGroup]:
    """Return every process group that this process belongs to.

    Raises:
        UsageError: this version of PyTorch keeps them elsewhere.
    """
    check_attributes("torch", READ_IN, dist.distributed_c10d, ("_world", "_set_pg_timeout"))
    return list(dist.distributed_c10d._world.pg_map)


def set_time_limit(group: dist.ProcessGroup, limit: timedelta) -> None:
    """Let the collectives of a group fail after `limit`."""
    dist.distributed_c10d._set_pg_timeout(limit, group)


def check_fsdp(units: Iterable[FSDPModule]) -> None:
    """Look for everything below inside each sharded module.

    Raises:
        UsageError: names what this version of PyTorch does not have.
    """
    for unit in units:
        check_attributes("torch", READ_IN, unit, ("_get_fsdp_state",))
        check_attributes("torch", READ_IN, _state(unit), STATE)
        for group in _groups(unit):
            check_attributes("torch", READ_IN, group, GROUP)
            check_attributes("torch", READ_IN, group.fsdp_params[0], PARAMETER)


def _state(unit: Any) -> Any:
    return unit._get_fsdp_state()


def _groups(unit: FSDPModule) -> Iterator[Any]:
    """Yield what a sharded module communicates together: nothing if its blocks hold it all."""
    if (group := _state(unit)._fsdp_param_group) is not None:
        yield group


def mixed_precision(unit: FSDPModule) -> MixedPrecisionPolicy:
    """Return the policy a module was sharded with."""
    return _state(unit)._mp_policy


def reshards_after_forward(unit: FSDPModule) -> bool:
    """Whether a module's parameters are freed between forward and backward."""
    return all(group.post_forward_mesh_info is not None for group in _groups(unit))


def padded_elements(unit: FSDPModule) -> int:
    """Return the elements of what a unit scatters: its slices, padded, of all ranks together."""
    return sum(
        part.padded_sharded_param_size.numel() * group.mesh_info.shard_mesh_size
        for group in _groups(unit)
        for part in group.fsdp_params
    )


def reduce_scatter_of(unit: FSDPModule) -> ReduceScatter | None:
    """Return what scatters a unit's gradients; None for one without parameters of its own."""
    return next((group._reduce_scatter_comm for group in _groups(unit)), None)


def held_gradients(unit: FSDPModule) -> Iterator[torch.Tensor]:
    """Yield whole gradients not reduced yet, reduced slices, and what waits for all-reduce."""
    for group in _groups(unit):
        held = [group._partial_reduce_output]
        for part in group.fsdp_params:
            # In another dtype than they are reduced in, whole gradients are kept aside.
            held += [part.unsharded_accumulated_grad, _whole_gradient(part)]
            if part.sharded_param.grad is not None:
                held.append(part.sharded_param.grad.to_local())
        yield from (gradient for gradient in held if gradient is not None)


def _whole_gradient(part: Any) -> torch.Tensor | None:
    # Made by the first gather.
    return part._unsharded_param.grad if hasattr(part, "_unsharded_param") else None


def drop_gradients(unit: FSDPModule) -> None:
    """Let go of all that `held_gradients` yields; `zero_grad` sees the reduced slices alone."""
    for group in _groups(unit):
        group._partial_reduce_output = None
        for part in group.fsdp_params:
            part.unsharded_accumulated_grad = None
            part.sharded_param.grad = None
            if hasattr(part, "_unsharded_param"):
                part._unsharded_param.grad = None


def process_group_of(arguments: Sequence[Any]) -> dist.ProcessGroup:
    """Return the process group among a collective operator's arguments, by itself or by name."""
    for argument in arguments:
        if isinstance(argument, torch.ScriptObject) and "ProcessGroup" in str(argument._type()):
            return dist.ProcessGroup.unbox(argument)
    return named_group(arguments[-1])


def named_group(name: Any) -> dist.ProcessGroup:
    """Return the process group that PyTorch has given a name."""
    return dist.distributed_c10d._resolve_process_group(name)


def below_autograd() -> AbstractContextManager[None]:
    """Return a context in which operators go to the kernels below their autograd ones."""
    return torch._C._AutoDispatchBelowAutograd()


def take_back(library: torch.library.Library) -> None:
    """Remove the kernels of a library again."""
    library._destroy()


@contextmanager
def around_waits(around: Callable[[dist.Work], AbstractContextManager[None]]) -> Iterator[None]:
    """Make each wait for a collective that Python code does happen in a context of `around`."""
    kind: Any = dist.Work
    original = kind.wait

    def wait(work: dist.Work, *arguments: Any, **settings: Any) -> bool:
        with around(work):
            return original(work, *arguments, **settings)

    kind.wait = wait
    try:
        yield
    finally:
        kind.wait = original


def find_cpp_compiler() -> str | None:
    """Return the C++ compiler that torch.compile would use, or None where there is none."""
    from torch._inductor import cpp_builder, exc

    try:
        return cpp_builder.get_cpp_compiler()
    except exc.InvalidCxxCompiler:
        return None


@contextmanager
def without_native_warnings() -> Iterator[None]:
    """Keep PyTorch's C++ code from printing warnings meanwhile, where its level can be set.

    Python's own filters do not reach them, and the variable that does is read once, at its import.
    """
    library = next((Path(torch.__file__).parent / "lib").glob("libc10.*"), None)
    try:
        level = c_int.in_dll(CDLL(str(library)), "FLAGS_caffe2_log_level")
    except (OSError, ValueError):
        yield
        return
    before, level.value = level.value, max(level.value, _NATIVE_ERROR)
    try:
        yield
    finally:
        level.value = before


def memory_trackers() -> tuple[Any, Any]:
    """Return the trackers of a plain and of a sharded model's storages."""
    from torch.distributed._tools.fsdp2_mem_tracker import FSDPMemTracker
    from torch.distributed._tools.mem_tracker import MemTracker

    return MemTracker, FSDPMemTracker


def lock_pages(values: np.ndarray) -> None:
    """Keep an array's pages in place for as long as it lives, so that a GPU can copy into them.

    Raises:
        RuntimeError: CUDA cannot lock that much.
    """
    from torch.cuda import _pin_memory_utils

    check_attributes("torch", READ_IN, _pin_memory_utils, ("pin_memory", "unpin_memory"))
    address = values.ctypes.data
    _pin_memory_utils.pin_memory(address, values.nbytes)
    unlocking = weakref.finalize(values, _pin_memory_utils.unpin_memory, address)
    # As the interpreter ends CUDA may have ended before.
    unlocking.atexit = False


def fake_store() -> dist.Store:
    """Return the store of a process group that answers for ranks that do not exist."""
    from torch.testing._internal.distributed.fake_pg import FakeStore

    return FakeStore()
