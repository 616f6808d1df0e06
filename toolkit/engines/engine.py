"""What the training loop may ask of an engine, whichever one runs underneath.

Every engine averages gradients over ranks. The loop's loss is this rank's share of one mean over
the whole global batch, so that shares add up; `Engine.backward` therefore multiplies by the number
of ranks what the engine will divide by.
"""

import math
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any, Literal, TypeVar

import torch
import torch.distributed as dist
from torch import nn

from toolkit.engines.launched import Launched
from toolkit.engines.norm import global_norm
from toolkit.engines.strategies import Accumulation
from toolkit.engines.torch_internals import SCALER_STATE

_CLIP_EPSILON = 1e-6
"""Added to the norm that is divided by, as `torch.nn.utils.clip_grad_norm_` does."""

MicroBatch = TypeVar("MicroBatch")
Kind = Literal["parameter", "exp_avg", "exp_avg_sq"]
"""What the state holds for each parameter: its fp32 master and AdamW's two moments."""


class Engine(ABC):
    """A model and its optimizer, wrapped, with one way to accumulate gradients.

    Attributes:
        model: what to call: `model(tokens, targets)`; a module that its engine gave more methods.
        optimizer: the wrapped optimizer, with `param_groups`.
        device: where batches must be.
        at_boundary: whether the earlier micro-steps of the current window are over.
        waited_s: seconds in collectives that the loop asked for, since the start.
        parameters: the model's, each once: those whose gradients are clipped.
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
        self.waited_s = 0.0
        self.parameters: Sequence[nn.Parameter] = tuple(model.parameters())
        self._left_out = False
        self._window: Generator[Any] | None = None

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

    @torch.no_grad()
    def clip_and_step(self) -> torch.Tensor:
        """Clip the averaged gradient, update the parameters, clear the gradient.

        A gradient that is not finite is cleared without an update.

        Returns:
            The global L2 norm of the gradient before clipping, a scalar, fp64.
        """
        if self._scales:
            self.accelerator.unscale_gradients()
        grad_norm = self._clip(self._local_gradients())
        # The norm is that of the averaged gradient, so every rank decides alike.
        self._left_out = not math.isfinite(grad_norm.item())
        if self._scales or not self._left_out:
            # A scaler leaves the update out by itself, and lowers its scale; of a fused optimizer,
            # whose kernel does so, Accelerate believes that it has made the update.
            self.optimizer.step()
        self._clear_gradients()
        self._window = None
        return grad_norm

    def _clip(self, gradients: list[torch.Tensor]) -> torch.Tensor:
        """Scale what this rank holds of the gradient; return the whole gradient's norm before."""
        grad_norm = self._global_norm(gradients)
        norm = grad_norm.item()
        # As torch.nn.utils.clip_grad_norm_, which also touches gradients that stay as they are.
        if 0 < self.grad_clip < norm + _CLIP_EPSILON:
            torch._foreach_mul_(gradients, self.grad_clip / (norm + _CLIP_EPSILON))
        return grad_norm

    def _local_gradients(self) -> list[torch.Tensor]:
        """Return what this rank holds of the averaged gradient, as plain tensors."""
        return [p.grad for p in self.parameters if p.grad is not None]

    def _global_norm(self, gradients: list[torch.Tensor]) -> torch.Tensor:
        """Return the L2 norm of the whole gradient, from what this rank holds of it."""
        return global_norm(gradients)

    def _clear_gradients(self) -> None:
        self.optimizer.zero_grad(set_to_none=True)

    def _drop_gradients(self) -> None:
        """Let go of every gradient of an unfinished window."""
        self._clear_gradients()

    @property
    def step_was_skipped(self) -> bool:
        """Whether the last update was left out because its gradient was not finite."""
        return self._left_out or (self._scales and bool(self.optimizer.step_was_skipped))

    @property
    def _scales(self) -> bool:
        """Whether losses are scaled, as fp16 needs, and gradients so until the update."""
        return self.accelerator.scaler is not None

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
        return self.begin_sum(value)()

    def begin_sum(self, value: torch.Tensor) -> Callable[[], torch.Tensor]:
        """Start to add up `value` over all ranks; what is returned waits for the sum."""
        total = value.detach().clone()
        work = dist.all_reduce(total, async_op=True) if self.world_size > 1 else None

        def finish() -> torch.Tensor:
            if work is not None:
                with self._waiting():
                    work.wait()
            return total

        return finish

    def max_over_ranks(self, value: torch.Tensor) -> torch.Tensor:
        """Return the largest `value` of all ranks; a collective."""
        largest = value.detach().clone()
        if self.world_size > 1:
            with self._waiting():
                dist.all_reduce(largest, op=dist.ReduceOp.MAX)
        return largest

    def gather_numbers(self, own: Sequence[float]) -> list[list[float]]:
        """Return each rank's numbers, in the order of ranks; one collective for all of them.

        Whole numbers below 2^53 come through exactly.
        """
        if self.world_size == 1:
            return [list(own)]
        sent = torch.tensor(own, dtype=torch.float64, device=self.device)
        found = [torch.empty_like(sent) for _ in range(self.world_size)]
        with self._waiting():
            dist.all_gather(found, sent)
        return torch.stack(found).tolist()

    @contextmanager
    def _waiting(self) -> Iterator[None]:
        started = time.perf_counter()
        yield
        self.waited_s += time.perf_counter() - started

    def gather_from_ranks(self, value: Any) -> list[Any]:
        """Return every rank's value, in the order of ranks; a collective that also waits."""
        if self.world_size == 1:
            return [value]
        values: list[Any] = [None] * self.world_size
        dist.all_gather_object(values, value)
        return values

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
    def held(self, parameter: nn.Parameter) -> range:
        """Return which elements of the flattened parameter this rank has the fp32 master of."""

    @property
    @abstractmethod
    def copies(self) -> tuple[int, int]:
        """This rank's place among the ranks that hold the same elements, and their number."""

    @abstractmethod
    def held_values(self, parameter: nn.Parameter, kind: Kind) -> torch.Tensor:
        """Return the `held` elements as a flat fp32 view: what is written to it is in force.

        Moments are there after an update or `start_moments`. A new parameter value is used once
        `finish_loading` was called.
        """

    def own_share(self, parameter: nn.Parameter) -> range:
        """Return the part of `held` that is this rank's alone: all ranks' are the parameter."""
        held = self.held(parameter)
        index, count = self.copies
        return held[len(held) * index // count : len(held) * (index + 1) // count]

    @abstractmethod
    def start_moments(self, updates: int) -> None:
        """Make AdamW's state as it is after `updates` updates, its moments still to be set."""

    @property
    def loss_scale(self) -> dict[str, float] | None:
        """The dynamic fp16 loss scale and how many updates it has held; None otherwise."""
        scaler = self.accelerator.scaler
        if scaler is None or not scaler.is_enabled():
            return None
        state = scaler.state_dict()
        return {"scale": state["scale"], "held": state[SCALER_STATE]}

    def load_loss_scale(self, found: dict[str, float]) -> None:
        """Set what `loss_scale` returned, on this or another engine."""
        scaler = self.accelerator.scaler
        held = {"scale": found["scale"], SCALER_STATE: int(found["held"])}
        scaler.load_state_dict({**scaler.state_dict(), **held})

    def finish_loading(self) -> None:
        """Called once after all parameters are set, where an engine keeps a second copy."""
        return


def start_adamw(optimizer: Any, updates: int) -> None:
    """Give every parameter of a torch AdamW its state after `updates` updates, moments zero."""
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            state = optimizer.state[parameter]
            state["step"] = torch.tensor(float(updates), device=parameter.device)
            for moment in ("exp_avg", "exp_avg_sq"):
                state[moment] = torch.zeros_like(parameter, memory_format=torch.preserve_format)
