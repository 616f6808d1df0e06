"""What DeepSpeed does not document and an audit reads: the one place in it that reaches for it.

Read in deepspeed 0.19.8: `deepspeed/runtime/engine.py`, `zero/stage3.py`,
`deepspeed/utils/mixed_precision_linkage.py`.
"""

from collections.abc import Iterator
from typing import Any

import torch
from torch import distributed

from toolkit.engines.deepspeed_internals import (
    OPTIMIZERS,
    PARTITIONED,
    compute_parameters,
    held_sums,
    masters,
)

READ_IN = "0.19.8"


def settings_of(engine: Any) -> dict[str, Any]:
    """Return clipping and accumulation in force, and whether clipping was asked for."""
    asked = getattr(engine._config, "_param_dict", None) or {}
    return {
        "gradient_clipping": float(engine.gradient_clipping()),
        "asks_for_clipping": "gradient_clipping" in asked,
        "gradient_accumulation_steps": int(engine.gradient_accumulation_steps()),
    }


def _is_sharding(engine: Any) -> bool:
    return engine is not None and type(engine.optimizer).__name__ in OPTIMIZERS


def parameters_held(engine: Any) -> list[Any]:
    """Return the model's parameters that an engine's optimizer updates."""
    if _is_sharding(engine):
        return list(compute_parameters(engine.optimizer))
    return [p for group in engine.optimizer.param_groups for p in group["params"]]


def sums_held(engine: Any) -> Iterator[torch.Tensor]:
    """Yield the sums of gradients that an engine, or None, keeps apart from the parameters."""
    return held_sums(engine.optimizer) if _is_sharding(engine) else iter(())


def gradient_parts(engine: Any) -> dict[int, tuple[int, torch.Tensor]]:
    """Return the parts of the gradient that DeepSpeed hands its inner optimizer.

    By the id of each parameter: where the part begins in the flattened whole, and the part.
    """
    if not _is_sharding(engine):
        return {}
    is_partitioned = type(engine.optimizer).__name__ == PARTITIONED
    parts = _stage_3_parts if is_partitioned else _flat_parts
    return {key: (start, part) for key, start, part in parts(engine.optimizer)}


def _flat_parts(optimizer: Any) -> Iterator[tuple[int, int, torch.Tensor]]:
    for parameter in compute_parameters(optimizer):
        if (mapping := parameter._hp_mapping) is None:  # type: ignore[attr-defined]
            continue
        here, there = mapping.lp_fragment_address, mapping.hp_fragment_address
        own = mapping.get_hp_fragment().untyped_storage().data_ptr()
        for master in masters(optimizer):
            if master.grad is not None and master.untyped_storage().data_ptr() == own:
                part = master.grad.detach().view(-1)[there.start : there.start + there.numel]
                yield id(parameter), here.start, part


def _stage_3_parts(optimizer: Any) -> Iterator[tuple[int, int, torch.Tensor]]:
    for group, master in zip(optimizer.fp16_groups, masters(optimizer), strict=True):
        place = 0
        for parameter in group:
            size = parameter.ds_tensor.numel()
            if master.grad is not None:
                part = master.grad.detach().view(-1)[place : place + size]
                yield id(parameter), distributed.get_rank() * size, part
            place += size
