"""DeepSpeed ZeRO stages 1, 2 and 3.

DeepSpeed clips, updates and clears gradients inside `engine.step()`, with the clipping value of its
own configuration, and reports the norm afterwards; `deepspeed_config` gives it the run's value.
"""

from collections.abc import Iterator, Sequence

import torch
from deepspeed import utils as ds
from torch import nn

from toolkit.backends.engine import Engine, MicroBatch, Moment


class ZeroEngine(Engine):
    """A DeepSpeed engine driven micro-step by micro-step.

    Stage 1 reduces only at the boundary by itself; stages 2 and 3 reduce at every micro-step unless
    the whole window is inside `coalesce_grad_reduction`.
    """

    @property
    def module(self) -> nn.Module:
        """The model inside DeepSpeed's engine."""
        return self.model.module  # type: ignore[return-value]

    def accumulate(self, micro_batches: Sequence[MicroBatch]) -> Iterator[MicroBatch]:
        """Yield the micro-batches; the last one is DeepSpeed's boundary."""
        if self.accumulation == "replicated" and self.launched.strategy != "zero1":
            self._set_boundary(True)
            with self.model.coalesce_grad_reduction():  # type: ignore[operator]
                yield from micro_batches
            return
        *earlier, last = micro_batches
        self._set_boundary(False)
        yield from earlier
        self._set_boundary(True)
        yield last

    def _set_boundary(self, boundary: bool) -> None:
        self.model.set_gradient_accumulation_boundary(boundary)  # type: ignore[operator]

    def backward(self, loss: torch.Tensor) -> None:
        """Add the gradient; the loss is divided already, so DeepSpeed must not divide it again."""
        self.model.backward(loss * self.world_size, scale_wrt_gas=False)  # type: ignore[operator]

    def clip_and_step(self) -> torch.Tensor:
        """Let DeepSpeed clip, update and clear, and ask it for the norm it saw."""
        self.model.step()  # type: ignore[operator]
        grad_norm = self.model.get_global_grad_norm()  # type: ignore[operator]
        return torch.as_tensor(grad_norm, dtype=torch.float32, device=self.device)

    @property
    def step_was_skipped(self) -> bool:
        """Whether DeepSpeed left out the last update because of an overflow."""
        return not self.model.was_step_applied()  # type: ignore[operator]

    def full_parameter(self, parameter: nn.Parameter) -> torch.Tensor:
        """Gather the fp32 master fragments."""
        return ds.safe_get_full_fp32_param(parameter)

    def full_gradient(self, parameter: nn.Parameter) -> torch.Tensor:
        """Gather the averaged gradient fragments."""
        return ds.safe_get_full_grad(parameter)

    def full_moment(self, parameter: nn.Parameter, moment: Moment) -> torch.Tensor:
        """Gather the fragments of the optimizer's state."""
        return ds.safe_get_full_optimizer_state(parameter, moment)

    def load_parameter(self, parameter: nn.Parameter, value: torch.Tensor) -> None:
        """Set the master fragments and the working copy."""
        ds.safe_set_full_fp32_param(parameter, value.to(self.device))

    def load_moments(
        self, parameter: nn.Parameter, moments: dict[Moment, torch.Tensor], *, steps: int
    ) -> None:
        """Set the fragments of the optimizer's state."""
        for name, value in moments.items():
            ds.safe_set_full_optimizer_state(parameter, value.to(self.device), name)
        for state in self.optimizer.state.values():
            state["step"] = torch.tensor(float(steps))
