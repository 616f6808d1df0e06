"""What a rank's training step does to a few weights, phase by phase, in numbers.

Hangs on the step as any callback does; values are read off the engine's state, gradients of one
micro-step come from autograd, collectives are counted where PyTorch dispatches them.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.distributed.tensor import DTensor

from toolkit.engines.collectives import CollectiveCounter
from toolkit.engines.engine import Engine
from toolkit.training.callback import Callback, Phase

Frame = dict[str, Any]


class Weights(nn.Module):
    """A column of weights w; what they were in the last forward pass, and their gradients since.

    A column, so that every engine may cut it: they keep vectors whole or cut them otherwise.
    """

    def __init__(self, first: np.ndarray) -> None:
        super().__init__()
        self.count = len(first)
        self.w = nn.Parameter(torch.from_numpy(first).clone().unsqueeze(1))
        self.seen: list[float] = []
        self.losses: list[float] = []
        self.gradient: list[float] = []

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return 0.5 |w - x|^2 of each sample, [samples], from x of [samples, weights]."""
        w = self.w.view(-1)
        w.register_hook(self._keep_gradient)
        losses = 0.5 * (w - x).square().sum(1)
        self.seen, self.losses = numbers(w), numbers(losses)
        return losses

    def _keep_gradient(self, gradient: torch.Tensor) -> None:
        self.gradient = numbers(gradient)


class Problem(nn.Module):
    """The lesson's model, called as the training step calls any."""

    def __init__(self, first: np.ndarray) -> None:
        super().__init__()
        self.weights = Weights(first)

    def forward(self, x: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        """Return the sum of losses; a mean of them where a micro-batch counts as one target."""
        losses = self.weights(x)
        return losses.sum() * (len(targets) / len(losses))


def numbers(tensor: torch.Tensor) -> list[float]:
    """Return fp32 values as the shortest decimals that are them."""
    # Not by `numpy()`, which takes hold of the storage: engines then cannot free it.
    return [float(str(np.float32(value))) for value in tensor.detach().view(-1).tolist()]


class Recorder(Callback):
    """Keeps a frame of each phase of a step: what this rank has, and what it communicated."""

    def __init__(self, engine: Engine, problem: Problem) -> None:
        self.engine = engine
        self.problem = problem
        # The engine's own, which a gathered copy takes the place of in the module.
        self.parameter = engine.parameters[0]
        self.count = problem.weights.count
        self.frames: list[Frame] = []
        self._counter = CollectiveCounter()
        self._counted = 0
        self._micro_step = -1

    @contextmanager
    def step(self) -> Iterator[None]:
        """Record the step that is made inside."""
        self.frames, self._micro_step, self._counted = [], -1, 0
        self._counter = CollectiveCounter()
        self._keep("read")
        with self._counter:
            yield
        self._keep("update")

    def on_phase(self, phase: Phase) -> None:
        """Keep what the phase that ends here did."""
        if phase == "backward":
            self._keep(
                "forward", seen=self.problem.weights.seen, losses=self.problem.weights.losses
            )
            return
        if self._micro_step >= 0:
            self._keep("backward", own=self.problem.weights.gradient)
        self._micro_step += 1

    def _keep(self, phase: str, **found: Any) -> None:
        calls = self._counter.seen[self._counted :]
        self._counted = len(self._counter.seen)
        state = self.engine.state
        held = state.held(self.parameter)
        self.frames.append(
            {
                "phase": phase,
                "micro_step": self._micro_step,
                "weights": self._weights(held),
                "gradient": [self._place(held, part) for part in state.held_gradients()],
                "master": self._master(held),
                "gradient_bytes": state.held_gradient_bytes(),
                "calls": [
                    [call.kind, call.elements * call.itemsize, call.elements, list(call.ranks)]
                    for call in calls
                ],
                **found,
            }
        )

    def _weights(self, held: range) -> list[float | None]:
        """Return what this rank has of the weights it computes with; None where it has nothing."""
        local = self._local()
        return self._place(held, local if local.numel() else self._held_master())

    def _master(self, held: range) -> list[float | None] | None:
        """Return the optimizer's own copy of the weights, where it has one."""
        if self._updates_in_place():
            return None
        return self._place(held, self._held_master())

    def _updates_in_place(self) -> bool:
        local, master = self._local(), self._held_master()
        return master.untyped_storage().data_ptr() == local.untyped_storage().data_ptr()

    def _local(self) -> torch.Tensor:
        """Return the module's weights as they are here: whole, a slice, or nothing."""
        current = self.problem.weights.w.detach()
        return current.to_local() if isinstance(current, DTensor) else current

    def _held_master(self) -> torch.Tensor:
        return self.engine.state.held_values(self.parameter, "parameter")

    def _place(self, held: range, values: torch.Tensor) -> list[float | None]:
        """Return values at the weights that they belong to; a flat partition is padded behind."""
        found = numbers(values)
        if len(found) == self.count:
            return list(found)
        whole: list[float | None] = [None] * self.count
        whole[held.start : held.stop] = found[: len(held)]
        return whole
