"""DeepSpeed ZeRO stages 1, 2 and 3.

DeepSpeed clips, updates and clears gradients inside `engine.step()`, with the clipping value of its
own configuration, and reports the norm afterwards; `deepspeed_config` gives it the run's value. It
adds squares in fp64, but for stage 1 in bf16, where another optimizer class adds them in fp32.
"""

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, cast

import torch
from deepspeed import utils as ds
from torch import nn

from toolkit.backends.engine import Engine, Kind, MicroBatch


class ZeroEngine(Engine):
    """A DeepSpeed engine driven micro-step by micro-step.

    Stage 1 reduces only at the boundary by itself; stages 2 and 3 reduce at every micro-step unless
    the whole window is inside `coalesce_grad_reduction`.
    """

    def __init__(self, **arguments: Any) -> None:
        super().__init__(**arguments)
        if self._coalesces:
            # The window's gradients wait on the parameters themselves, which are bf16.
            for _, parameter in self.named_parameters():
                parameter.grad_dtype = torch.float32
        if self._whole_sums:
            # Clipped here: DeepSpeed would clip once more, by its own norm.
            self.model.optimizer.clip_grad = 0.0

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
        grad_norm = self._clip(self._whole_sums) if self._whole_sums else None
        self.model.step()
        if grad_norm is None:
            grad_norm = self.model.get_global_grad_norm()
        return torch.as_tensor(grad_norm, dtype=torch.float64, device=self.device)

    @property
    def _whole_sums(self) -> list[torch.Tensor]:
        """Flat fp32 sums of the whole gradient, which only stage 1 in bf16 keeps on every rank."""
        return list(getattr(self.model.optimizer, "fp32_groups_gradients_flat", ()))

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
        yield from self._whole_sums
        for sums in ("all_grad_tensors", "averaged_gradients"):
            for held in getattr(optimizer, sums, {}).values():
                yield from held or ()

    def full_parameter(self, parameter: nn.Parameter) -> torch.Tensor:
        """Gather the fp32 master fragments."""
        return ds.safe_get_full_fp32_param(parameter)

    def full_gradient(self, parameter: nn.Parameter) -> torch.Tensor:
        """Gather the averaged gradient fragments."""
        return ds.safe_get_full_grad(parameter)

    def held(self, parameter: nn.Parameter) -> range:
        """Return this rank's fragment, which may be empty; stage 3 cuts every parameter equally."""
        whole: Any = parameter
        if self._is_partitioned:
            size = whole.ds_tensor.numel()
            # The slices are equal, so the last one may be padded at its end.
            return range(whole.ds_numel)[self.rank * size : (self.rank + 1) * size]
        if whole._hp_mapping is None:
            return range(0)
        fragment = whole._hp_mapping.lp_fragment_address
        return range(fragment.start, fragment.start + fragment.numel)

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
            return torch.empty(0, device=self.device)
        fragment = cast(Any, parameter)._hp_mapping
        if kind == "parameter":
            return fragment.get_hp_fragment()
        if not fragment.optim_fragment:
            self._link_moments()
        return fragment.get_hp_fragment(kind)

    def start_moments(self, updates: int) -> None:
        """Make the state of each flat partition, which a fresh engine does not have yet."""
        for master in self.masters:
            self.optimizer.state[master] = {
                "step": torch.tensor(float(updates), device=self.device),
                "exp_avg": torch.zeros_like(master),
                "exp_avg_sq": torch.zeros_like(master),
            }
        self._link_moments()

    @property
    def loss_scale(self) -> dict[str, float] | None:
        """DeepSpeed keeps its own scaler, which counts from the last overflow."""
        scaler: Any = getattr(self.model.optimizer, "loss_scaler", None)
        if scaler is None or not scaler.dynamic:
            return None
        return {
            "scale": float(scaler.cur_scale),
            "held": (scaler.cur_iter - scaler.last_overflow_iter - 1) % scaler.scale_window,
        }

    def load_loss_scale(self, found: dict[str, float]) -> None:
        """Set the scale; the count goes on from where it was."""
        scaler: Any = self.model.optimizer.loss_scaler
        scaler.cur_scale = found["scale"]
        scaler.last_overflow_iter = scaler.cur_iter - 1 - int(found["held"])

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

    def _link_moments(self) -> None:
        """Let every parameter find its part of the optimizer's state.

        DeepSpeed 0.19.8 does so after the first group's first update, when the other groups have no
        state, and then never again.
        """
        optimizer: Any = self.model.optimizer
        if hasattr(optimizer, "_lazy_init_hp_params_optimizer_state"):
            optimizer._hp_optimizer_states_linked = False
            optimizer._lazy_init_hp_params_optimizer_state()
