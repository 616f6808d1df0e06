"""What the training loop may ask of an engine, whichever one runs underneath.

Every engine averages gradients over ranks. The loop's loss is this rank's share of one mean over
the whole global batch, so that shares add up; `Engine.backward` therefore multiplies by the number
of ranks what the engine will divide by.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any, Literal, TypeVar

import torch
import torch.distributed as dist
from torch import nn

from toolkit.backends.launched import Launched
from toolkit.backends.strategies import Accumulation

MicroBatch = TypeVar("MicroBatch")
Moment = Literal["exp_avg", "exp_avg_sq"]


class Engine(ABC):
    """A model and its optimizer, wrapped, with one way to accumulate gradients.

    Attributes:
        model: what to call: `model(tokens, targets)`; a module that its engine gave more methods.
        optimizer: the wrapped optimizer, with `param_groups`.
        device: where batches must be.
        at_boundary: whether the earlier micro-steps of the current window are over.
    """

    def __init__(
        self,
        *,
        accelerator: Any,
        model: Any,
        optimizer: Any,
        launched: Launched,
        accumulation: Accumulation,
        grad_clip: float,
    ) -> None:
        self.accelerator = accelerator
        self.model = model
        self.optimizer = optimizer
        self.launched = launched
        self.accumulation = accumulation
        self.grad_clip = grad_clip
        self.device: torch.device = accelerator.device
        self.at_boundary = True

    @property
    def rank(self) -> int:
        """This process among all processes."""
        return self.launched.rank

    @property
    def world_size(self) -> int:
        """Number of processes, each with its own part of the data."""
        return self.launched.world_size

    def accumulate(self, micro_batches: Sequence[MicroBatch]) -> Iterator[MicroBatch]:
        """Yield the micro-batches of one step; after the last, gradients are averaged over ranks.

        Forward and backward of a micro-batch both belong inside one turn of the loop over this:
        an engine decides before the forward pass whether the backward pass will communicate.
        """
        *earlier, last = micro_batches
        self.at_boundary = False
        for micro_batch in earlier:
            with self._before_last_micro_step():
                yield micro_batch
        self.at_boundary = True
        yield last

    def _before_last_micro_step(self) -> AbstractContextManager[None]:
        """Return the context of every micro-step but the last; set by the accumulation mode."""
        return _nothing()

    def backward(self, loss: torch.Tensor) -> None:
        """Add the gradient of this rank's share of the global mean loss."""
        self.accelerator.backward(loss * self.world_size)

    def clip_and_step(self) -> torch.Tensor:
        """Clip the averaged gradient, update the parameters, clear the gradient.

        Returns:
            The global L2 norm of the gradient before clipping, a scalar.
        """
        max_norm = self.grad_clip or float("inf")
        grad_norm = self.accelerator.clip_grad_norm_(self.model.parameters(), max_norm)
        self.optimizer.step()
        self._clear_gradients()
        return grad_norm

    def _clear_gradients(self) -> None:
        self.optimizer.zero_grad(set_to_none=True)

    @property
    def step_was_skipped(self) -> bool:
        """Whether the last update was left out because fp16 gradients overflowed."""
        return bool(self.optimizer.step_was_skipped)

    def set_lr(self, lr: float) -> None:
        """Set the learning rate of every parameter group."""
        for group in self.optimizer.param_groups:
            group["lr"] = lr

    @contextmanager
    def evaluating(self) -> Iterator[None]:
        """Forward passes without gradients or dropout; every rank must do equally many."""
        self.model.eval()
        try:
            with torch.no_grad():
                yield
        finally:
            self.model.train()

    def sum_over_ranks(self, value: torch.Tensor) -> torch.Tensor:
        """Return the sum of `value` over all ranks; a collective, so every rank must call it."""
        total = value.detach().clone()
        if self.world_size > 1:
            dist.all_reduce(total)
        return total

    def max_over_ranks(self, value: torch.Tensor) -> torch.Tensor:
        """Return the largest `value` of all ranks; a collective."""
        largest = value.detach().clone()
        if self.world_size > 1:
            dist.all_reduce(largest, op=dist.ReduceOp.MAX)
        return largest

    def wait_for_everyone(self) -> None:
        """Return once every rank has got here."""
        if self.world_size > 1:
            dist.barrier()

    @property
    @abstractmethod
    def module(self) -> nn.Module:
        """The model without the engine's wrapper, with its own parameter names."""

    def named_parameters(self) -> Iterator[tuple[str, nn.Parameter]]:
        """Yield every parameter once, in the model's order; a tied one under its first name."""
        yield from self.module.named_parameters()

    def updated_parameters(self) -> Iterator[nn.Parameter]:
        """Yield the model's parameters that the optimizer updates."""
        for group in self.optimizer.param_groups:
            yield from group["params"]

    def replica_groups(self) -> list[tuple[int, ...]]:
        """Return the groups of ranks that must hold the same `replicated_tensors`."""
        return []

    def replicated_tensors(self) -> Iterator[torch.Tensor]:
        """Yield what this rank holds of each parameter, in the order of `named_parameters`."""
        for _, parameter in self.named_parameters():
            yield parameter

    @abstractmethod
    def held_gradients(self) -> Iterator[torch.Tensor]:
        """Yield what this rank keeps of the gradients between two micro-steps, wherever it is."""

    @abstractmethod
    def full_parameter(self, parameter: nn.Parameter) -> torch.Tensor:
        """Return the whole fp32 master value of a parameter; a collective."""

    @abstractmethod
    def full_gradient(self, parameter: nn.Parameter) -> torch.Tensor:
        """Return the whole averaged gradient between accumulation and update; a collective."""

    @abstractmethod
    def full_moment(self, parameter: nn.Parameter, moment: Moment) -> torch.Tensor:
        """Return a whole AdamW moment after at least one update; a collective."""

    @abstractmethod
    def load_parameter(self, parameter: nn.Parameter, value: torch.Tensor) -> None:
        """Set a parameter's fp32 master from its whole value; `finish_loading` does the rest."""

    @abstractmethod
    def load_moments(
        self, parameter: nn.Parameter, moments: dict[Moment, torch.Tensor], *, steps: int
    ) -> None:
        """Set both AdamW moments from whole fp32 values, and the number of updates behind them."""

    def finish_loading(self) -> None:
        """Called once after all parameters are loaded, where an engine keeps a second copy."""
        return


@contextmanager
def _nothing() -> Iterator[None]:
    yield
