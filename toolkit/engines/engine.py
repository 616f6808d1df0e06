"""What the training loop may ask of an engine, whichever one runs underneath.

Every engine averages gradients over ranks. The loop's loss is this rank's share of one mean over
the whole global batch, so that shares add up; `Engine.backward` therefore multiplies by the number
of ranks what the engine will divide by.
"""

import math
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any, ClassVar, TypeVar

import torch
from torch import nn

from toolkit.engines.launched import Launched
from toolkit.engines.mixture import Mixture
from toolkit.engines.norm import global_norm
from toolkit.engines.ranks import Ranks
from toolkit.engines.reduction import Reduce
from toolkit.engines.state import EngineState
from toolkit.engines.strategies import Accumulation, Precision

_CLIP_EPSILON = 1e-6
"""Added to the norm that is divided by, as `torch.nn.utils.clip_grad_norm_` does."""

MicroBatch = TypeVar("MicroBatch")


class Engine:
    """A model and its optimizer, wrapped, with one way to accumulate gradients.

    Attributes:
        model: what to call: `model(tokens, targets)`; a module that its engine gave more methods.
        module: the model without the engine's wrapper, with its own parameter names.
        optimizer: the wrapped optimizer, with `param_groups`.
        device: where batches must be.
        ranks: all processes, for what they share besides gradients.
        state: access to parameters, gradients and the optimizer's state.
        norm: finds the gradient's norm; another one is needed where gradients have no values.
        parameters: the model's, each once: those whose gradients are clipped.
        set_to_none: whether a gradient's memory is given back between steps.
        at_boundary: whether the earlier micro-steps of the current window are over.
    """

    state_class: ClassVar[type[EngineState]]

    def __init__(
        self,
        *,
        accelerator: Any,
        module: nn.Module,
        model: Any,
        optimizer: Any,
        launched: Launched,
        accumulation: Accumulation | Mixture,
        grad_clip: float,
        precision: Precision = "fp32",
        reduce: Reduce | None = None,
    ) -> None:
        self.accelerator = accelerator
        self.module = module
        self.model = model
        self.optimizer = optimizer
        self.launched = launched
        self.accumulation = accumulation
        self.grad_clip = grad_clip
        self.precision = precision
        self.reduce = reduce
        self.device: torch.device = accelerator.device
        self.ranks = Ranks(launched.rank, launched.world_size, self.device)
        self.state = self.state_class(module, optimizer, launched, accelerator.scaler)
        self.norm: Callable[..., torch.Tensor] = global_norm
        self.parameters: Sequence[nn.Parameter] = tuple(model.parameters())
        self.set_to_none = True
        self.at_boundary = True
        self._skipped = False
        self._window: Generator[Any] | None = None

    @property
    def rank(self) -> int:
        """This process among all processes."""
        return self.launched.rank

    @property
    def world_size(self) -> int:
        """Number of processes, each with its own part of the data."""
        return self.launched.world_size

    def set_lr(self, lr: float) -> None:
        """Set the learning rate of every parameter group."""
        for group in self.optimizer.param_groups:
            group["lr"] = lr

    def accumulate(self, micro_batches: Sequence[MicroBatch]) -> Iterator[MicroBatch]:
        """Yield the micro-batches of one step; after the last, gradients are averaged over ranks.

        Forward and backward of a micro-batch both belong inside one turn of the loop over this:
        an engine decides before the forward pass whether the backward pass will communicate. A
        window that an exception ended before its update is abandoned first.
        """
        self.abandon_window()
        self._window = self._micro_steps(micro_batches)
        return self._window

    def _micro_steps(self, micro_batches: Sequence[MicroBatch]) -> Generator[MicroBatch]:
        *earlier, last = micro_batches
        if earlier:
            self.at_boundary = False
            with self._before_last_micro_step():
                yield from earlier
        self.at_boundary = True
        yield last

    def _before_last_micro_step(self) -> AbstractContextManager[None]:
        """Return the context of all micro-steps but the last; set by the accumulation mode."""
        return nullcontext()

    def abandon_window(self) -> None:
        """Forget the micro-steps since the last update, without communication.

        The next window starts as if they had not been. A window that was updated from, or none at
        all, is left alone. Gradients that wait for their reduction lie where `zero_grad` of no
        optimizer looks, so each engine has its own way.
        """
        if self._window is not None:
            self._window.close()
            self._window = None
            self._drop_gradients()
            self.at_boundary = True

    def backward(self, loss: torch.Tensor) -> None:
        """Add the gradient of this rank's share of the global mean loss."""
        self.accelerator.backward(loss * self.world_size)

    def clip_and_step(self) -> torch.Tensor:
        """Clip the averaged gradient, update the parameters, clear the gradient.

        A gradient that is not finite is cleared without an update.

        Returns:
            The global L2 norm of the gradient before clipping, a scalar, fp64.
        """
        grad_norm = self._update()
        self._window = None
        return grad_norm

    @torch.no_grad()
    def _update(self) -> torch.Tensor:
        if self._scales:
            self.accelerator.unscale_gradients()
        grad_norm = self._clip(self._local_gradients())
        # The norm is that of the averaged gradient, so every rank decides alike.
        self._skipped = not math.isfinite(grad_norm.item())
        if self._scales or not self._skipped:
            # A scaler skips the update by itself, and lowers its scale; of a fused optimizer,
            # whose kernel does so, Accelerate believes that it has made the update.
            self.optimizer.step()
        self._clear_gradients()
        return grad_norm

    def _clip(self, gradients: list[torch.Tensor]) -> torch.Tensor:
        """Scale what this rank holds of the gradient; return the whole gradient's norm before."""
        grad_norm = self.norm(gradients, self._sum_over_shards)
        norm = grad_norm.item()
        # As torch.nn.utils.clip_grad_norm_, which also touches gradients that stay as they are.
        if 0 < self.grad_clip < norm + _CLIP_EPSILON:
            torch._foreach_mul_(gradients, self.grad_clip / (norm + _CLIP_EPSILON))
        return grad_norm

    def _local_gradients(self) -> list[torch.Tensor]:
        """Return what this rank holds of the averaged gradient, as plain tensors."""
        return [p.grad for p in self.parameters if p.grad is not None]

    def _sum_over_shards(self, total: torch.Tensor) -> torch.Tensor:
        """Add up what the ranks found of gradients that they hold in parts."""
        return total

    def _clear_gradients(self) -> None:
        self.optimizer.zero_grad(set_to_none=self.set_to_none)

    def _drop_gradients(self) -> None:
        """Let go of every gradient of an unfinished window."""
        self._clear_gradients()

    @property
    def step_was_skipped(self) -> bool:
        """Whether the last update was skipped because its gradient was not finite."""
        return self._skipped or (self._scales and bool(self.optimizer.step_was_skipped))

    @property
    def _scales(self) -> bool:
        """Whether losses are scaled, as fp16 needs, and gradients so until the update."""
        return self.accelerator.scaler is not None

    @contextmanager
    def evaluating(self) -> Iterator[None]:
        """Forward passes without gradients or dropout; every rank must do equally many."""
        self.model.eval()
        try:
            with torch.no_grad():
                yield
        finally:
            self.model.train()
