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
from toolkit.engines.engine import Engine
from toolkit.engines.exchange import Bf16Exchange
from toolkit.engines.mixture import ROOT, Unit, mode_of, stays_gathered
from toolkit.engines.reduction import reduction_of
from toolkit.engines.state import EngineState, Kind


def units_of(module: nn.Module) -> list[FSDPModule]:
    """Return the modules that were sharded, each with what it communicates together."""
    return [unit for unit in module.modules() if isinstance(unit, FSDPModule)]


class Fsdp2State(EngineState):
    """Slices of whole tensors; the sharded parameter is the fp32 master."""

    def __init__(self, module: nn.Module, *arguments: Any) -> None:
        super().__init__(module, *arguments)
        internals.check_fsdp(units_of(module))

    def replica_groups(self) -> list[tuple[int, ...]]:
        """Ranks with the same slice in different replica groups, which lie one after another."""
        shards = self.launched.world_size // self.launched.replicas
        if shards == self.launched.world_size:
            return []
        return [tuple(range(index, self.launched.world_size, shards)) for index in range(shards)]

    def replicated_tensors(self) -> Iterator[torch.Tensor]:
        """Yield this rank's slices."""
        for parameter in self.module.parameters():
            yield cast(DTensor, parameter.detach()).to_local()

    def held_gradients(self) -> Iterator[torch.Tensor]:
        """Yield whole gradients not reduced yet, reduced slices, and what waits for all-reduce."""
        for unit in units_of(self.module):
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

    @staticmethod
    def _place(sharded: DTensor) -> tuple[int, int]:
        """Index of this rank's slice of dimension 0, and the number of slices."""
        mesh = sharded.device_mesh
        dim = next(i for i, placement in enumerate(sharded.placements) if placement == Shard(0))
        return mesh.get_local_rank(dim), mesh.size(dim)


def _full(tensor: torch.Tensor) -> torch.Tensor:
    return cast(DTensor, tensor.detach()).full_tensor()


class Fsdp2Engine(Engine):
    """FSDP2 and hybrid sharding.

    Attributes:
        blocks: the modules that were to be sharded one by one.
    """

    state_class = Fsdp2State

    def __init__(self, *, blocks: Sequence[nn.Module] = (), **arguments: Any) -> None:
        super().__init__(**arguments)
        self.blocks = blocks
        self._units = units_of(self.module)
        self._names = {id(block): number for number, block in enumerate(blocks)}
        for unit in self._units:
            if self._stays_gathered(unit):
                unit.set_reshard_after_forward(False, recurse=False)
            if self.name_of(unit) in self.exchanging:
                unit.set_custom_reduce_scatter(Bf16Exchange(internals.padded_elements(unit)))

    def name_of(self, unit: FSDPModule) -> Unit:
        """Return a block's number; whatever is sharded outside the blocks is the root."""
        return self._names.get(id(unit), ROOT)

    @property
    def exchanging(self) -> set[Unit]:
        """The units that send gradients in bf16 and sum them in fp32; one rank sends nothing."""
        if self.launched.world_size == self.launched.replicas:
            return set()
        strategy = self.launched.strategy
        return {
            name
            for name in map(self.name_of, self._units)
            if reduction_of(strategy, self.precision, self.reduce, mode_of(self.accumulation, name))
            == "bf16-fp32sum"
        }

    @contextmanager
    def _before_last_micro_step(self) -> Iterator[None]:
        for unit in self._units:
            mode = mode_of(self.accumulation, self.name_of(unit))
            # Recursing, a call would set every unit below as well, and visit every module.
            unit.set_requires_gradient_sync(mode != "replicated", recurse=False)
            unit.set_requires_all_reduce(mode == "sharded", recurse=False)
            unit.set_reshard_after_backward(not self._stays_gathered(unit), recurse=False)
        try:
            yield
        finally:
            for unit in self._units:
                unit.set_requires_gradient_sync(True, recurse=False)
                unit.set_reshard_after_backward(True, recurse=False)

    def _stays_gathered(self, unit: FSDPModule) -> bool:
        return stays_gathered(self.launched.strategy, self.accumulation, self.name_of(unit))

    def _local_gradients(self) -> list[torch.Tensor]:
        """Return the slices: operators on DTensors cost some 0.1 ms of Python each."""
        return [cast(DTensor, gradient).to_local() for gradient in super()._local_gradients()]

    def _sum_over_shards(self, total: torch.Tensor) -> torch.Tensor:
        """Replica groups hold the same, so the ranks of one add up to the whole."""
        mesh = cast(DTensor, self.parameters[0]).device_mesh
        dist.all_reduce(total, group=mesh.get_group(mesh.ndim - 1))
        return total

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
