"""What DeepSpeed does not document and this toolkit needs: the one place that reaches for it.

Read in deepspeed 0.19.8: `deepspeed/runtime/zero/stage_1_and_2.py`, `zero/stage3.py`,
`bf16_optimizer.py`, `fp16/loss_scaler.py`, and `deepspeed/utils/mixed_precision_linkage.py`.
Documented are the engine's methods, `safe_get_*` and the configuration.
"""

from collections.abc import Iterator
from typing import Any

import torch
from torch import nn

from toolkit.engines.attributes import check_attributes

READ_IN = "0.19.8"
# Each stage has an optimizer class of its own, and stage 1 in bf16 another.
PARTITIONED = "DeepSpeedZeroOptimizer_Stage3"
FLAT_SUMS = "BF16_Optimizer"
BUCKETED = "DeepSpeedZeroOptimizer"
OPTIMIZERS: dict[str, tuple[str, ...]] = {
    BUCKETED: (
        "bit16_groups",
        "single_partition_of_fp32_groups",
        "averaged_gradients",
        "all_grad_tensors",
        "loss_scaler",
        "update_lp_params",
        "_hp_optimizer_states_linked",
        "_lazy_init_hp_params_optimizer_state",
    ),
    FLAT_SUMS: (
        "bf16_groups",
        "fp32_groups_flat_partition",
        "fp32_groups_gradients_flat",
        "clear_hp_grads",
        "clear_lp_grads",
        "update_lp_params",
        "_hp_optimizer_states_linked",
        "_lazy_init_hp_params_optimizer_state",
    ),
    PARTITIONED: (
        "fp16_groups",
        "fp32_partitioned_groups_flat",
        "grad_partitions_flat_buffer",
        "loss_scaler",
        "persistent_parameters",
        "_reassign_or_swap_out_partitioned_parameters",
    ),
}
PARAMETERS: dict[str, tuple[str, ...]] = {
    BUCKETED: ("_hp_mapping", "grad_accum"),
    FLAT_SUMS: ("_hp_mapping",),
    PARTITIONED: ("ds_tensor", "ds_numel", "partition", "all_gather"),
}
SCALER = ("cur_scale", "cur_iter", "last_overflow_iter", "scale_window")


def check_optimizer(optimizer: Any) -> None:
    """Look for everything below in DeepSpeed's optimizer and its parameters.

    Raises:
        UsageError: names what this version of DeepSpeed does not have.
    """
    kind = type(optimizer).__name__
    if kind not in OPTIMIZERS:
        # Any of the three would do for the message: none of its attributes is there.
        kind = BUCKETED
    check_attributes("deepspeed", READ_IN, optimizer, OPTIMIZERS[kind])
    check_attributes("deepspeed", READ_IN, next(compute_parameters(optimizer)), PARAMETERS[kind])
    if (scaler := _scaler(optimizer)) is not None:
        check_attributes("deepspeed", READ_IN, scaler, SCALER)


def _is(optimizer: Any, kind: str) -> bool:
    return type(optimizer).__name__ == kind


def masters(optimizer: Any) -> list[torch.Tensor]:
    """Return this rank's flat fp32 partitions, one per parameter group."""
    if _is(optimizer, PARTITIONED):
        return list(optimizer.fp32_partitioned_groups_flat)
    if _is(optimizer, FLAT_SUMS):
        return list(optimizer.fp32_groups_flat_partition)
    return list(optimizer.single_partition_of_fp32_groups)


def compute_parameters(optimizer: Any) -> Iterator[nn.Parameter]:
    """Yield what the flat partitions were made of."""
    if _is(optimizer, PARTITIONED):
        groups = optimizer.fp16_groups
    else:
        groups = optimizer.bf16_groups if _is(optimizer, FLAT_SUMS) else optimizer.bit16_groups
    for group in groups:
        yield from group


def slice_kept(parameter: Any) -> torch.Tensor:
    """Return what stage 3 keeps of a parameter while it is not gathered."""
    return parameter.ds_tensor


def held_sums(optimizer: Any) -> Iterator[torch.Tensor]:
    """Yield the sums of gradients that are kept apart from the parameters."""
    if _is(optimizer, PARTITIONED):
        yield optimizer.grad_partitions_flat_buffer
    elif _is(optimizer, FLAT_SUMS):
        yield from optimizer.fp32_groups_gradients_flat
    else:
        for sums in (optimizer.all_grad_tensors, optimizer.averaged_gradients):
            for held in sums.values():
                yield from held or ()
        for parameter in compute_parameters(optimizer):
            if parameter.grad_accum is not None:  # type: ignore[attr-defined]
                yield parameter.grad_accum  # type: ignore[attr-defined]


def whole_sums(optimizer: Any) -> list[torch.Tensor]:
    """Return flat fp32 sums of the whole gradient, which only stage 1 in bf16 keeps on a rank."""
    return list(optimizer.fp32_groups_gradients_flat) if _is(optimizer, FLAT_SUMS) else []


def drop_gradients(optimizer: Any) -> None:
    """Let go of a window's gradients and sums, and count the next micro-step as the first.

    Stage 3 keeps its sums; it writes over them in a first micro-step.
    """
    if _is(optimizer, FLAT_SUMS):
        optimizer.clear_hp_grads()
        optimizer.clear_lp_grads(set_to_none=True)
        return
    for parameter in compute_parameters(optimizer):
        # On a CPU stage 3's `zero_grad` stumbles over a gradient that is there.
        parameter.grad = None
    optimizer.zero_grad(set_to_none=True)
    if _is(optimizer, BUCKETED):
        for sums in (optimizer.all_grad_tensors, optimizer.averaged_gradients):
            sums.update(dict.fromkeys(sums))


def part_held(parameter: Any, rank: int) -> range:
    """Return which elements of the flattened parameter a rank has the master of."""
    if hasattr(parameter, "ds_tensor"):
        size = parameter.ds_tensor.numel()
        # The slices are equal, so the last one may be padded at its end.
        return range(parameter.ds_numel)[rank * size : (rank + 1) * size]
    if parameter._hp_mapping is None:
        return range(0)
    fragment = parameter._hp_mapping.lp_fragment_address
    return range(fragment.start, fragment.start + fragment.numel)


def whole_size(parameter: Any) -> int:
    """Return the elements of a parameter, of which stage 3 leaves none in place."""
    return int(getattr(parameter, "ds_numel", parameter.numel()))


def master_part(parameter: Any) -> torch.Tensor:
    """Return the view of a parameter's part of the flat fp32 partition, below stage 3."""
    return parameter._hp_mapping.get_hp_fragment()


def moment_part(optimizer: Any, parameter: Any, moment: str) -> torch.Tensor:
    """Return the view of a parameter's part of the optimizer's state, below stage 3."""
    if not parameter._hp_mapping.optim_fragment:
        link_moments(optimizer)
    return parameter._hp_mapping.get_hp_fragment(moment)


def link_moments(optimizer: Any) -> None:
    """Let every parameter find its part of the optimizer's state.

    DeepSpeed 0.19.8 does so after the first group's first update, when the other groups have no
    state, and then never again.
    """
    if not _is(optimizer, PARTITIONED):
        optimizer._hp_optimizer_states_linked = False
        optimizer._lazy_init_hp_params_optimizer_state()


def use_masters(optimizer: Any) -> None:
    """Make the parameters that the model computes with out of the masters."""
    if not _is(optimizer, PARTITIONED):
        optimizer.update_lp_params()
        return
    for group in range(len(masters(optimizer))):
        optimizer._reassign_or_swap_out_partitioned_parameters(group)
    if kept := optimizer.persistent_parameters:
        kept[0].partition(kept)
        kept[0].all_gather(kept)


def _scaler(optimizer: Any) -> Any:
    """Return the dynamic loss scaler, which is there in fp16 alone."""
    scaler = getattr(optimizer, "loss_scaler", None)
    return scaler if scaler is not None and scaler.dynamic else None


def loss_scale(optimizer: Any) -> dict[str, float] | None:
    """Return the dynamic scale and how many updates it has held, or None without one.

    DeepSpeed counts from the last overflow.
    """
    if (scaler := _scaler(optimizer)) is None:
        return None
    return {
        "scale": float(scaler.cur_scale),
        "held": (scaler.cur_iter - scaler.last_overflow_iter - 1) % scaler.scale_window,
    }


def set_loss_scale(optimizer: Any, scale: float, held: int) -> None:
    """Set the scale; the count goes on from `held`."""
    scaler = _scaler(optimizer)
    scaler.cur_scale = scale
    scaler.last_overflow_iter = scaler.cur_iter - 1 - held
