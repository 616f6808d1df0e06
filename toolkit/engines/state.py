"""Where an engine keeps what training changes: masters, moments, gradients and the loss scale."""

from abc import ABC, abstractmethod
from collections.abc import Iterator
from typing import Any, Literal

import torch
from torch import nn

from toolkit.engines.launched import Launched
from toolkit.engines.torch_internals import SCALER_STATE

Kind = Literal["parameter", "exp_avg", "exp_avg_sq"]
"""What there is for each parameter: its fp32 master and AdamW's two moments."""


class EngineState(ABC):
    """Access to an engine's state by the parameters of its module.

    Args:
        module: the model without the engine's wrapper, with its own parameter names.
        optimizer: what updates it.
        launched: the strategy and this process's place in it.
        scaler: PyTorch's, where it scales the losses.
    """

    def __init__(self, module: nn.Module, optimizer: Any, launched: Launched, scaler: Any) -> None:
        self.module = module
        self.optimizer = optimizer
        self.launched = launched
        self.scaler = scaler

    def updated_parameters(self) -> Iterator[nn.Parameter]:
        """Yield the model's parameters that the optimizer updates."""
        for group in self.optimizer.param_groups:
            yield from group["params"]

    def replica_groups(self) -> list[tuple[int, ...]]:
        """Return the groups of ranks that must hold the same `replicated_tensors`."""
        return []

    def replicated_tensors(self) -> Iterator[torch.Tensor]:
        """Yield what this rank holds of each parameter, in the module's order."""
        yield from self.module.parameters()

    @abstractmethod
    def held_gradients(self) -> Iterator[torch.Tensor]:
        """Yield what this rank keeps of the gradients between two micro-steps, wherever it is."""

    def held_gradient_bytes(self) -> int:
        """Return the bytes of `held_gradients`: whole storages, each counted once."""
        storages = [gradient.untyped_storage() for gradient in self.held_gradients()]
        return sum({storage.data_ptr(): storage.nbytes() for storage in storages}.values())

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

    def own_share(self, parameter: nn.Parameter) -> range:
        """Return the part of `held` that is this rank's alone: all ranks' are the parameter."""
        held = self.held(parameter)
        index, count = self.copies
        return held[len(held) * index // count : len(held) * (index + 1) // count]

    @abstractmethod
    def held_values(self, parameter: nn.Parameter, kind: Kind) -> torch.Tensor:
        """Return the `held` elements as a flat fp32 view: what is written to it is effective.

        Moments are there after an update or `start_moments`. A new parameter value is used once
        `finish_loading` was called.
        """

    def start_moments(self, updates: int) -> None:
        """Make AdamW's state as it is after `updates` updates, its moments still to be set."""
        for parameter in self.updated_parameters():
            state = self.optimizer.state[parameter]
            state["step"] = torch.tensor(float(updates), device=parameter.device)
            for moment in ("exp_avg", "exp_avg_sq"):
                state[moment] = torch.zeros_like(parameter, memory_format=torch.preserve_format)

    def finish_loading(self) -> None:
        """Called once after all parameters are set, where an engine keeps a second copy."""
        return

    @property
    def loss_scale(self) -> dict[str, float] | None:
        """The dynamic fp16 loss scale and how many updates it has held; None otherwise."""
        if self.scaler is None or not self.scaler.is_enabled():
            return None
        state = self.scaler.state_dict()
        return {"scale": state["scale"], "held": state[SCALER_STATE]}

    def load_loss_scale(self, found: dict[str, float]) -> None:
        """Set what `loss_scale` returned, on this or another engine."""
        held = {"scale": found["scale"], SCALER_STATE: int(found["held"])}
        self.scaler.load_state_dict({**self.scaler.state_dict(), **held})
