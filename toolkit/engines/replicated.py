"""Every rank holds everything: one process alone, or DistributedDataParallel."""

from collections.abc import Iterator
from contextlib import AbstractContextManager
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import bf16_compress_hook
from torch.futures import Future

from toolkit.engines.engine import Engine
from toolkit.engines.state import EngineState, Kind


class ReplicatedState(EngineState):
    """Whole tensors: a parameter is its own master."""

    def replica_groups(self) -> list[tuple[int, ...]]:
        """All ranks are replicas of each other."""
        return [tuple(range(self.launched.world_size))] if self.launched.world_size > 1 else []

    def held_gradients(self) -> Iterator[torch.Tensor]:
        """Yield each parameter's gradient; under DDP they are views of its buckets."""
        for parameter in self.module.parameters():
            if parameter.grad is not None:
                yield parameter.grad

    def full_parameter(self, parameter: nn.Parameter) -> torch.Tensor:
        """Return the parameter itself: it is whole here."""
        return parameter.detach()

    def full_gradient(self, parameter: nn.Parameter) -> torch.Tensor:
        """Return the gradient itself: it is whole here."""
        assert parameter.grad is not None
        return parameter.grad

    def held(self, parameter: nn.Parameter) -> range:
        """Return all elements: every rank holds everything."""
        return range(parameter.numel())

    @property
    def copies(self) -> tuple[int, int]:
        """All ranks hold the same."""
        return self.launched.rank, self.launched.world_size

    def held_values(self, parameter: nn.Parameter, kind: Kind) -> torch.Tensor:
        """Return the tensor itself."""
        found = parameter if kind == "parameter" else self.optimizer.state[parameter][kind]
        return found.detach().view(-1)


def reduce_in_bf16(group: Any, bucket: dist.GradBucket) -> Future[torch.Tensor]:
    """All-reduce a bucket in bf16: PyTorch's hook, which DDP refuses on a CPU by its name."""
    return bf16_compress_hook(group, bucket)


class ReplicatedEngine(Engine):
    """One process, or DDP: `no_sync` keeps gradients local where the mode is `replicated`."""

    state_class = ReplicatedState

    def __init__(self, **arguments: Any) -> None:
        super().__init__(**arguments)
        # Under DDP gradients are views of its buckets; a new set beside the buckets would be
        # allocated by the first micro-step that does not communicate.
        self.set_to_none = self.launched.strategy != "ddp"
        if self.reduce == "bf16":
            self.model.register_comm_hook(None, reduce_in_bf16)

    def _before_last_micro_step(self) -> AbstractContextManager[None]:
        if self.accumulation == "replicated" and self.launched.strategy == "ddp":
            return self.model.no_sync()
        return super()._before_last_micro_step()

    def without_averaging(self) -> AbstractContextManager[None]:
        """Return a context of steps in which each rank updates by its own gradient alone.

        The fault that `toolkit watch` shows: nothing fails, and the copies drift apart.
        """
        return self.model.no_sync()
