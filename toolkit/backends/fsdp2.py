"""Fully sharded data parallel (torch's `fully_shard`), with or without replica groups.

Parameters, gradients and optimizer state are DTensors: each rank holds a slice of dimension 0.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, cast

import torch
from torch import nn
from torch.distributed.fsdp import FSDPModule
from torch.distributed.tensor import DTensor, distribute_tensor

from toolkit.backends.engine import Engine, Moment


class Fsdp2Engine(Engine):
    """FSDP2 and hybrid sharding."""

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
        self._communicate(sync=sync, reduce=reduce)
        self.model.set_reshard_after_backward(not self._stays_gathered)
        yield
        self._communicate(sync=True, reduce=True)
        self.model.set_reshard_after_backward(True)

    @property
    def _stays_gathered(self) -> bool:
        """Whether parameters are gathered once per window: whole gradients are held anyway."""
        return (self.launched.strategy, self.accumulation) == ("fsdp2_no_reshard", "replicated")

    def _communicate(self, *, sync: bool, reduce: bool) -> None:
        self.model.set_requires_gradient_sync(sync)
        self.model.set_requires_all_reduce(reduce)

    @contextmanager
    def evaluating(self) -> Iterator[None]:
        """Also give back what stayed gathered: only a backward pass would have freed it."""
        with super().evaluating():
            yield
        for module in self.model.modules():
            if isinstance(module, FSDPModule):
                module.reshard()

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
        for module in self.model.modules():
            if not isinstance(module, FSDPModule):
                continue
            group: Any = module._get_fsdp_state()._fsdp_param_group
            held = [group._partial_reduce_output]
            for part in group.fsdp_params:
                # In another dtype than they are reduced in, whole gradients are kept aside.
                held += [part.unsharded_accumulated_grad, part._unsharded_param.grad]
                if part.sharded_param.grad is not None:
                    held.append(part.sharded_param.grad.to_local())
            yield from (gradient for gradient in held if gradient is not None)

    def full_parameter(self, parameter: nn.Parameter) -> torch.Tensor:
        """Gather the slices; the sharded parameter is the fp32 master."""
        return _full(parameter)

    def full_gradient(self, parameter: nn.Parameter) -> torch.Tensor:
        """Gather the slices of the reduced gradient."""
        assert parameter.grad is not None
        return _full(parameter.grad)

    def full_moment(self, parameter: nn.Parameter, moment: Moment) -> torch.Tensor:
        """Gather the slices of the optimizer's state."""
        return _full(self.optimizer.state[parameter][moment])

    def load_parameter(self, parameter: nn.Parameter, value: torch.Tensor) -> None:
        """Keep this rank's slice of the value."""
        with torch.no_grad():
            parameter.copy_(_shard_like(parameter, value))

    def load_moments(
        self, parameter: nn.Parameter, moments: dict[Moment, torch.Tensor], *, steps: int
    ) -> None:
        """Build the optimizer's state, sharded as the parameter is."""
        state = self.optimizer.state[parameter]
        state["step"] = torch.tensor(float(steps), device=self.device)
        for name, value in moments.items():
            state[name] = _shard_like(parameter, value)


def _full(tensor: torch.Tensor) -> torch.Tensor:
    return cast(DTensor, tensor.detach()).full_tensor()


def _shard_like(parameter: nn.Parameter, value: torch.Tensor) -> DTensor:
    sharded = cast(DTensor, parameter)
    # Every rank has the whole value already, so nothing needs to be sent.
    return distribute_tensor(
        value.to(sharded.device), sharded.device_mesh, sharded.placements, src_data_rank=None
    )
