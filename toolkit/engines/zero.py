"""DeepSpeed ZeRO stages 1, 2 and 3.

DeepSpeed clips, updates and clears gradients inside `engine.step()`, with the clipping value of its
own configuration, and reports the norm afterwards; `deepspeed_config` gives it the run's value. It
adds squares in fp64, but for stage 1 in bf16, where another optimizer class adds them in fp32.
"""

from collections.abc import Generator, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from deepspeed import utils as ds
from torch import nn

from toolkit.engines import deepspeed_internals as internals
from toolkit.engines.engine import Engine, MicroBatch
from toolkit.engines.state import EngineState, Kind


class ZeroState(EngineState):
    """Flat fp32 partitions, in which every parameter has a fragment."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        internals.check_optimizer(self.optimizer)

    @property
    def masters(self) -> list[torch.Tensor]:
        """This rank's flat fp32 partitions, one per parameter group."""
        return internals.masters(self.optimizer)

    def updated_parameters(self) -> Iterator[nn.Parameter]:
        """Yield what the flat partitions were made of."""
        return internals.compute_parameters(self.optimizer)

    def replica_groups(self) -> list[tuple[int, ...]]:
        """All ranks compute with the same whole parameters below stage 3."""
        whole = not self._is_partitioned and self.launched.world_size > 1
        return [tuple(range(self.launched.world_size))] if whole else []

    def held_gradients(self) -> Iterator[torch.Tensor]:
        """Yield whole gradients on the parameters, and the sums of this rank's partition."""
        for parameter in self.module.parameters():
            if parameter.grad is not None:
                yield parameter.grad
        yield from internals.held_sums(self.optimizer)

    def full_parameter(self, parameter: nn.Parameter) -> torch.Tensor:
        """Gather the fp32 master fragments."""
        return ds.safe_get_full_fp32_param(parameter)

    def full_gradient(self, parameter: nn.Parameter) -> torch.Tensor:
        """Gather the averaged gradient fragments."""
        return ds.safe_get_full_grad(parameter)

    def held(self, parameter: nn.Parameter) -> range:
        """Return this rank's fragment, which may be empty; stage 3 cuts every parameter equally."""
        return internals.part_held(parameter, self.launched.rank)

    @property
    def copies(self) -> tuple[int, int]:
        """Nothing is held twice."""
        return 0, 1

    def held_values(self, parameter: nn.Parameter, kind: Kind) -> torch.Tensor:
        """Return the fragment of the flat fp32 partition, or of the state kept beside it."""
        held = len(self.held(parameter))
        if self._is_partitioned:
            if kind == "parameter":
                return ds.safe_get_local_fp32_param(parameter)[:held]
            return ds.safe_get_local_optimizer_state(parameter, kind)[:held]
        if not held:
            return torch.empty(0, device=parameter.device)
        if kind == "parameter":
            return internals.master_part(parameter)
        return internals.moment_part(self.optimizer, parameter, kind)

    def start_moments(self, updates: int) -> None:
        """Make the state of each flat partition, which a fresh engine does not have yet."""
        for master in self.masters:
            self.optimizer.state[master] = {
                "step": torch.tensor(float(updates), device=master.device),
                "exp_avg": torch.zeros_like(master),
                "exp_avg_sq": torch.zeros_like(master),
            }
        internals.link_moments(self.optimizer)

    @property
    def loss_scale(self) -> dict[str, float] | None:
        """DeepSpeed keeps a scaler of its own."""
        return internals.loss_scale(self.optimizer)

    def load_loss_scale(self, found: dict[str, float]) -> None:
        """Set the scale; the count goes on from where it was."""
        internals.set_loss_scale(self.optimizer, found["scale"], int(found["held"]))

    def finish_loading(self) -> None:
        """Make the parameters that the model computes with out of the masters."""
        internals.use_masters(self.optimizer)

    @property
    def _is_partitioned(self) -> bool:
        return self.launched.strategy == "zero3"


class ZeroEngine(Engine):
    """A DeepSpeed engine driven micro-step by micro-step.

    Stage 1 reduces only at the boundary by itself; stages 2 and 3 reduce at every micro-step unless
    the whole window is inside `coalesce_grad_reduction`.
    """

    state_class = ZeroState

    def __init__(self, **arguments: Any) -> None:
        super().__init__(**arguments)
        if self._coalesces:
            # The window's gradients wait on the parameters themselves, which are bf16.
            for parameter in self.parameters:
                parameter.grad_dtype = torch.float32
        if internals.whole_sums(self.optimizer):
            # Clipped here: DeepSpeed would clip once more, by its own norm.
            self.optimizer.clip_grad = 0.0

    def _micro_steps(self, micro_batches: Sequence[MicroBatch]) -> Generator[MicroBatch]:
        """Yield the micro-batches; the last one is DeepSpeed's boundary."""
        *earlier, last = micro_batches
        self.at_boundary = False
        with self._whole_window():
            try:
                yield from earlier
                self._set_boundary(True)
                self.at_boundary = True
                yield last
            except GeneratorExit:
                # Leaving a coalesced window reduces what is there, and other ranks may not come.
                self._drop_gradients()
                raise

    def _whole_window(self) -> AbstractContextManager[None]:
        """Return the context of a whole window; a coalesced one is all boundary to DeepSpeed."""
        self._set_boundary(self._coalesces)
        return self.model.coalesce_grad_reduction() if self._coalesces else nullcontext()

    @property
    def _coalesces(self) -> bool:
        return self.accumulation == "replicated" and self.launched.strategy != "zero1"

    def _set_boundary(self, boundary: bool) -> None:
        self.model.set_gradient_accumulation_boundary(boundary)

    def backward(self, loss: torch.Tensor) -> None:
        """Add the gradient; the loss is divided already, so DeepSpeed must not divide it again."""
        self.model.backward(loss * self.world_size, scale_wrt_gas=False)

    def _update(self) -> torch.Tensor:
        """Let DeepSpeed clip, update and clear, and ask it for the norm it saw."""
        sums = internals.whole_sums(self.optimizer)
        grad_norm = self._clip(sums) if sums else None
        self.model.step()
        if grad_norm is None:
            grad_norm = self.model.get_global_grad_norm()
        return torch.as_tensor(grad_norm, dtype=torch.float64, device=self.device)

    @property
    def step_was_skipped(self) -> bool:
        """Whether DeepSpeed skipped the last update because of an overflow."""
        return not self.model.was_step_applied()

    def _drop_gradients(self) -> None:
        internals.drop_gradients(self.optimizer)
