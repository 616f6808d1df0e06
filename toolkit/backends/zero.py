"""DeepSpeed ZeRO stages 1, 2 and 3.

DeepSpeed clips, updates and clears gradients inside `engine.step()`, with the clipping value of its
own configuration, and reports the norm afterwards; `deepspeed_config` gives it the run's value.
"""

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from deepspeed import utils as ds
from torch import nn

from toolkit.backends.engine import Engine, MicroBatch, Moment


class ZeroEngine(Engine):
    """A DeepSpeed engine driven micro-step by micro-step.

    Stage 1 reduces only at the boundary by itself; stages 2 and 3 reduce at every micro-step unless
    the whole window is inside `coalesce_grad_reduction`.
    """

    def __init__(self, **arguments: Any) -> None:
        super().__init__(**arguments)
        if self._coalesces and self._is_partitioned:
            # Stage 3 leaves the window's gradients on its bf16 parameters; stage 2 has its own
            # fp32 sums.
            for _, parameter in self.named_parameters():
                parameter.grad_dtype = torch.float32

    @property
    def module(self) -> nn.Module:
        """The model inside DeepSpeed's engine."""
        return self.model.module

    def accumulate(self, micro_batches: Sequence[MicroBatch]) -> Iterator[MicroBatch]:
        """Yield the micro-batches; the last one is DeepSpeed's boundary."""
        *earlier, last = micro_batches
        self.at_boundary = False
        with self._window():
            yield from earlier
            self._set_boundary(True)
            self.at_boundary = True
            yield last

    def _window(self) -> AbstractContextManager[None]:
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

    def clip_and_step(self) -> torch.Tensor:
        """Let DeepSpeed clip, update and clear, and ask it for the norm it saw."""
        self.model.step()
        grad_norm = self.model.get_global_grad_norm()
        return torch.as_tensor(grad_norm, dtype=torch.float32, device=self.device)

    @property
    def step_was_skipped(self) -> bool:
        """Whether DeepSpeed left out the last update because of an overflow."""
        return not self.model.was_step_applied()

    @property
    def masters(self) -> list[torch.Tensor]:
        """This rank's flat fp32 partitions, one per group; each stage has a name of its own."""
        optimizer: Any = self.model.optimizer
        names = (
            "fp32_partitioned_groups_flat",  # stage 3
            "single_partition_of_fp32_groups",  # stages 1 and 2
            "fp32_groups_flat_partition",  # stage 1 in bf16
        )
        return list(next(getattr(optimizer, name) for name in names if hasattr(optimizer, name)))

    def updated_parameters(self) -> Iterator[nn.Parameter]:
        """Yield what the flat partitions were made of; each stage has a name of its own for it."""
        names = ("bit16_groups", "fp16_groups", "bf16_groups")
        optimizer: Any = self.model.optimizer
        for group in next(getattr(optimizer, name) for name in names if hasattr(optimizer, name)):
            yield from group

    def replica_groups(self) -> list[tuple[int, ...]]:
        """All ranks compute with the same whole parameters below stage 3."""
        whole = not self._is_partitioned and self.world_size > 1
        return [tuple(range(self.world_size))] if whole else []

    def held_gradients(self) -> Iterator[torch.Tensor]:
        """Yield whole gradients on the parameters, and the sums of this rank's partition."""
        optimizer: Any = self.model.optimizer
        for parameter in self.module.parameters():
            for gradient in (parameter.grad, getattr(parameter, "grad_accum", None)):
                if gradient is not None:
                    yield gradient
        if self._is_partitioned:
            yield optimizer.grad_partitions_flat_buffer
            return
        # Stage 1 in bf16 has another optimizer class, which keeps flat sums.
        yield from getattr(optimizer, "fp32_groups_gradients_flat", ())
        for sums in ("all_grad_tensors", "averaged_gradients"):
            for held in getattr(optimizer, sums, {}).values():
                yield from held or ()

    def full_parameter(self, parameter: nn.Parameter) -> torch.Tensor:
        """Gather the fp32 master fragments."""
        return ds.safe_get_full_fp32_param(parameter)

    def full_gradient(self, parameter: nn.Parameter) -> torch.Tensor:
        """Gather the averaged gradient fragments."""
        return ds.safe_get_full_grad(parameter)

    def full_moment(self, parameter: nn.Parameter, moment: Moment) -> torch.Tensor:
        """Gather the fragments of the optimizer's state."""
        self._link_moments()
        return ds.safe_get_full_optimizer_state(parameter, moment)

    def load_parameter(self, parameter: nn.Parameter, value: torch.Tensor) -> None:
        """Set this rank's part of the fp32 master; `finish_loading` sets the working copies."""
        if self._is_partitioned:
            ds.safe_set_local_fp32_param(parameter, self._own_part(parameter, value))
        else:
            ds.safe_set_full_fp32_param(parameter, value.to(self.device))

    def load_moments(
        self, parameter: nn.Parameter, moments: dict[Moment, torch.Tensor], *, steps: int
    ) -> None:
        """Set this rank's part of the optimizer's state, which a fresh engine does not have yet."""
        state = self.optimizer.state
        for master in self.masters:
            if not state[master]:
                state[master] = {name: torch.zeros_like(master) for name in moments}
                state[master]["step"] = torch.tensor(float(steps), device=self.device)
        self._link_moments()
        for name, value in moments.items():
            if self._is_partitioned:
                part = self._own_part(parameter, value)
                ds.safe_set_local_optimizer_state(parameter, part, name)
            else:
                ds.safe_set_full_optimizer_state(parameter, value.to(self.device), name)

    def finish_loading(self) -> None:
        """Make the parameters that the model computes with out of the masters."""
        optimizer: Any = self.model.optimizer
        if not self._is_partitioned:
            optimizer.update_lp_params()
            return
        for group in range(len(self.masters)):
            optimizer._reassign_or_swap_out_partitioned_parameters(group)
        if kept := optimizer.persistent_parameters:
            kept[0].partition(kept)
            kept[0].all_gather(kept)

    @property
    def _is_partitioned(self) -> bool:
        return self.launched.strategy == "zero3"

    def _own_part(self, parameter: nn.Parameter, value: torch.Tensor) -> torch.Tensor:
        """This rank's slice of the flat value, padded at the end so that all slices are equal."""
        size = parameter.ds_tensor.numel()  # type: ignore[attr-defined]
        part = value.flatten()[self.rank * size : (self.rank + 1) * size].to(self.device)
        return nn.functional.pad(part, (0, size - len(part)))

    def _link_moments(self) -> None:
        """Let every parameter find its part of the optimizer's state.

        DeepSpeed 0.19.8 does so after the first group's first update, when the other groups have no
        state, and then never again.
        """
        optimizer: Any = self.model.optimizer
        if hasattr(optimizer, "_lazy_init_hp_params_optimizer_state"):
            optimizer._hp_optimizer_states_linked = False
            optimizer._lazy_init_hp_params_optimizer_state()
