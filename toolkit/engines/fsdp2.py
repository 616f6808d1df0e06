"""Fully sharded data parallel (torch's `fully_shard`), with or without replica groups.

Parameters, gradients and optimizer state are DTensors: each rank holds a slice of dimension 0.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, cast

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import FSDPModule
from torch.distributed.tensor import DTensor, Shard

from toolkit.engines import torch_internals as internals
from toolkit.engines.engine import Engine, Kind, start_adamw
from toolkit.engines.norm import global_norm


class Fsdp2Engine(Engine):
    """FSDP2 and hybrid sharding.

    Attributes:
        blocks: the modules that were to be sharded one by one.
    """

    def __init__(self, *, blocks: Sequence[nn.Module] = (), **arguments: Any) -> None:
        super().__init__(**arguments)
        self.blocks = blocks
        self._units = [m for m in self.model.modules() if isinstance(m, FSDPModule)]
        internals.check_fsdp(self._units)

    @property
    def module(self) -> nn.Module:
        """`fully_shard` works in place: the model is its own wrapper."""
        return self.model

    @contextmanager
    def _before_last_micro_step(self) -> Iterator[None]:
        sync, reduce = {
            "replicated": (False, False),
            "sharded": (True, True),
            "deferred": (True, False),
        }[self.accumulation]
        self._set(sync=sync, reduce=reduce, reshard=not self._stays_gathered)
        try:
            yield
        finally:
            self._set(sync=True, reduce=True, reshard=True)

    @property
    def _stays_gathered(self) -> bool:
        """Whether parameters are gathered once per window: whole gradients are held anyway."""
        return (self.launched.strategy, self.accumulation) == ("fsdp2_no_reshard", "replicated")

    def _set(self, *, sync: bool, reduce: bool, reshard: bool) -> None:
        # Recursing, each call would visit every module of the model.
        for unit in self._units:
            unit.set_requires_gradient_sync(sync, recurse=False)
            unit.set_requires_all_reduce(reduce, recurse=False)
            unit.set_reshard_after_backward(reshard, recurse=False)

    def _local_gradients(self) -> list[torch.Tensor]:
        """Return the slices: operators on DTensors cost some 0.1 ms of Python each."""
        return [cast(DTensor, gradient).to_local() for gradient in super()._local_gradients()]

    def _global_norm(self, gradients: list[torch.Tensor]) -> torch.Tensor:
        """Add up the squares of all slices; replica groups hold the same."""
        mesh = cast(DTensor, self.parameters[0]).device_mesh
        shards = mesh.get_group(mesh.ndim - 1)

        def sum_over_shards(total: torch.Tensor) -> torch.Tensor:
            dist.all_reduce(total, group=shards)
            return total

        return global_norm(gradients, sum_over_shards)

    def _drop_gradients(self) -> None:
        for unit in self._units:
            internals.drop_gradients(unit)
            unit.reshard()

    @contextmanager
    def evaluating(self) -> Iterator[None]:
        """Also give back what stayed gathered: only a backward pass would have freed it."""
        with super().evaluating():
            yield
        for unit in self._units:
            unit.reshard()

    def replica_groups(self) -> list[tuple[int, ...]]:
        """Ranks with the same slice in different replica groups, which lie one after another."""
        shards = self.world_size // self.launched.replicas
        if shards == self.world_size:
            return []
        return [tuple(range(index, self.world_size, shards)) for index in range(shards)]

    def replicated_tensors(self) -> Iterator[torch.Tensor]:
        """Yield this rank's slices."""
        for _, parameter in self.named_parameters():
            yield cast(DTensor, parameter.detach()).to_local()

    def held_gradients(self) -> Iterator[torch.Tensor]:
        """Yield whole gradients not reduced yet, reduced slices, and what waits for all-reduce."""
        for unit in self._units:
            yield from internals.held_gradients(unit)

    def full_parameter(self, parameter: nn.Parameter) -> torch.Tensor:
        """Gather the slices; the sharded parameter is the fp32 master."""
        return _full(parameter)

    def full_gradient(self, parameter: nn.Parameter) -> torch.Tensor:
        """Gather the slices of the reduced gradient."""
        assert parameter.grad is not None
        return _full(parameter.grad)

    def held(self, parameter: nn.Parameter) -> range:
        """Return this rank's rows: dimension 0 is cut as `torch.chunk` does, the last ones short.

        An element is one of its row's `numel / rows`.
        """
        sharded = cast(DTensor, parameter)
        index, shards = self._place(sharded)
        rows = sharded.shape[0]
        width = sharded.numel() // rows
        per_rank = -(-rows // shards)
        first, last = (min(rows, per_rank * place) for place in (index, index + 1))
        return range(first * width, last * width)

    @property
    def copies(self) -> tuple[int, int]:
        """Replica groups hold the same, one rank of each group."""
        mesh = cast(DTensor, next(self.module.parameters())).device_mesh
        return (mesh.get_local_rank(0), mesh.size(0)) if mesh.ndim > 1 else (0, 1)

    def held_values(self, parameter: nn.Parameter, kind: Kind) -> torch.Tensor:
        """Return the local slice."""
        found = parameter if kind == "parameter" else self.optimizer.state[parameter][kind]
        return cast(DTensor, found.detach()).to_local().view(-1)

    def start_moments(self, updates: int) -> None:
        """Make the state as the optimizer's own first update would, sharded as the parameters."""
        start_adamw(self.optimizer, updates)

    @staticmethod
    def _place(sharded: DTensor) -> tuple[int, int]:
        """Index of this rank's slice of dimension 0, and the number of slices."""
        mesh = sharded.device_mesh
        dim = next(i for i, placement in enumerate(sharded.placements) if placement == Shard(0))
        return mesh.get_local_rank(dim), mesh.size(dim)


def _full(tensor: torch.Tensor) -> torch.Tensor:
    return cast(DTensor, tensor.detach()).full_tensor()
