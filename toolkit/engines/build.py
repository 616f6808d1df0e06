"""From a launch, a model and an optimizer to an engine: the one place that orders the wrapping."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from torch import nn

from toolkit.batching import BatchPlan
from toolkit.engines.accelerate_internals import (
    admit_sharding,
    plain_optimizer,
    plain_scaler,
)
from toolkit.engines.blocks import blocks_of, sizes_of
from toolkit.engines.engine import Engine
from toolkit.engines.launched import Launched
from toolkit.engines.mixture import Mixture, check_possible, check_units
from toolkit.engines.reduction import Reduce, check_reduce
from toolkit.engines.strategies import (
    FSDP2_STRATEGIES,
    Accumulation,
    Precision,
    Strategy,
    check_precision,
    frees_after_forward,
)
from toolkit.engines.ties import check_ties, tie_again, tied_names
from toolkit.errors import UsageError

TORCH_DTYPES: dict[Precision, torch.dtype] = {
    "fp32": torch.float32,
    "bf16": torch.bfloat16,
    "fp16": torch.float16,
}


def build_engine(
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    *,
    launched: Launched,
    plan: BatchPlan,
    accumulation: Accumulation | Mixture,
    precision: Precision,
    grad_clip: float,
    reduce: Reduce | None = None,
    trackers: list[str] | None = None,
    project_dir: str | None = None,
    block_classes: Sequence[type[nn.Module]] = (),
    compile_blocks: bool = False,
) -> Engine:
    """Wrap model and optimizer for the launched strategy; `start_process_group` must have run.

    Args:
        model: any module; called with a micro-batch's tensors, it returns a sum of losses.
        optimizer: built on this model.
        reduce: what gradients are sent as; None: in half the bytes where nothing is lost.
        block_classes: the classes whose modules are sharded one by one and gathered one at a time;
            without any, those that `blocks_of` finds.
        compile_blocks: whether to compile them, which no engine's hooks are inside of.

    Raises:
        UsageError: strategy, mode, precision, model or trackers are not possible here.
    """
    # NVIDIA's containers let cuBLAS round fp32 to TF32 (TORCH_ALLOW_TF32_CUBLAS_OVERRIDE=1).
    torch.set_float32_matmul_precision("highest")
    blocks = blocks_of(model, block_classes)
    _check_model(model, blocks, launched.strategy)
    _check_asked(launched, accumulation, len(blocks), precision, reduce)
    plugins = _plugins(launched, plan, model, blocks, accumulation, precision, reduce, grad_clip)
    accelerator = _build_accelerator(precision, trackers or [], project_dir, plugins)
    to_compile = blocks if compile_blocks else []
    wrapped, wrapped_optimizer = _wrap(accelerator, model, optimizer, to_compile)
    return _engine_class(launched, blocks)(
        accelerator=accelerator,
        module=model,
        model=wrapped,
        optimizer=wrapped_optimizer,
        launched=launched,
        accumulation=accumulation,
        grad_clip=grad_clip,
        precision=precision,
        reduce=reduce,
    )


def sum_dtype(reduce: Reduce | None) -> torch.dtype:
    """Return the dtype that gradients are added up in over ranks."""
    return torch.bfloat16 if reduce == "bf16" else torch.float32


def _build_accelerator(
    precision: Precision, trackers: list[str], project_dir: str | None, plugins: dict[str, Any]
) -> Any:
    from accelerate import Accelerator

    _check_trackers(trackers)
    return Accelerator(
        mixed_precision="no" if precision == "fp32" else precision,
        log_with=trackers or None,
        project_dir=project_dir,
        **plugins,
    )


def _wrap(
    accelerator: Any,
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    to_compile: Sequence[nn.Module],
) -> tuple[Any, Any]:
    """Tie, checkpoint, compile, wrap, in the one order that works.

    Tying and checkpointing come first because they are the model's own: its constructor shares
    weights, and its forward pass recomputes blocks inside of whatever is put around them.
    """
    if accelerator.scaler is not None:
        accelerator.scaler = plain_scaler(accelerator.scaler)
    # Before wrapping, which makes two parameters of one that is shared.
    ties = tied_names(model)
    # In place, so that names stay, and before wrapping, so that hooks stay outside the code.
    for block in to_compile:
        block.compile()
    # Both in one call: engines replace the optimizer's parameters by their sharded ones.
    wrapped, wrapped_optimizer = accelerator.prepare(model, optimizer)
    # After wrapping, when there are sharded parameters to share.
    tie_again(model, ties)
    # Last, when it is known whether there are losses to scale.
    if accelerator.scaler is None:
        wrapped_optimizer = plain_optimizer(wrapped_optimizer)
    return wrapped, wrapped_optimizer


def _check_model(model: nn.Module, blocks: Sequence[nn.Module], strategy: Strategy) -> None:
    """Refuse a model that cannot be sharded by its blocks, where that is what a strategy does."""
    if strategy not in FSDP2_STRATEGIES:
        return
    check_ties(model, tied_names(model), blocks)
    if not blocks:
        raise UsageError(
            f"{strategy} shards a model block by block, and {type(model).__name__} has no "
            "nn.ModuleList of blocks of one class; give build_engine their block_classes"
        )


def _check_asked(
    launched: Launched,
    accumulation: Accumulation | Mixture,
    blocks: int,
    precision: Precision,
    reduce: Reduce | None,
) -> None:
    check_possible(launched.strategy, accumulation)
    check_units(accumulation, blocks)
    check_reduce(launched.strategy, precision, reduce)
    _check_precision(launched, precision)


def _check_precision(launched: Launched, precision: Precision) -> None:
    from accelerate import PartialState

    check_precision(precision, PartialState().device.type)
    if launched.precision not in (None, precision):
        raise UsageError(
            f"the launch file sets mixed_precision: {launched.precision} but the run sets "
            f"precision: {precision}; leave mixed_precision out of the launch file"
        )


def _check_trackers(asked: list[str]) -> None:
    """Refuse a tracker that is not installed; Accelerate would skip it in silence."""
    from accelerate.tracking import get_available_trackers

    available = [str(getattr(tracker, "value", tracker)) for tracker in get_available_trackers()]
    for tracker in asked:
        if tracker not in available:
            raise UsageError(
                f"training.trackers: '{tracker}' is not installed; "
                f"pip install it or take it out (installed: {', '.join(available) or 'none'})"
            )


def _engine_class(launched: Launched, blocks: Sequence[nn.Module]) -> Callable[..., Engine]:
    if launched.strategy.startswith("zero"):
        from toolkit.engines.zero import ZeroEngine

        return ZeroEngine
    if launched.strategy in ("single", "ddp"):
        from toolkit.engines.replicated import ReplicatedEngine

        return ReplicatedEngine
    from toolkit.engines.fsdp2 import Fsdp2Engine

    return partial(Fsdp2Engine, blocks=blocks)


def _plugins(
    launched: Launched,
    plan: BatchPlan,
    model: nn.Module,
    blocks: Sequence[nn.Module],
    accumulation: Accumulation | Mixture,
    precision: Precision,
    reduce: Reduce | None,
    grad_clip: float,
) -> dict[str, Any]:
    """Return the arguments of `Accelerator` that make it the launched engine."""
    from accelerate.utils import DeepSpeedPlugin, DistributedDataParallelKwargs

    if launched.strategy.startswith("zero"):
        from toolkit.engines.deepspeed_config import STAGES, build_deepspeed_config

        plugin = DeepSpeedPlugin(zero_stage=STAGES[launched.strategy])
        # Given as an argument, the dictionary would be refused wherever the launch file, too, sets
        # the stage; and the launch file has to set it, for it is what picks the engine.
        plugin.deepspeed_config |= build_deepspeed_config(
            launched.strategy,
            accumulation,
            plan=plan,
            sizes=sizes_of(model, blocks),
            precision=precision,
            grad_clip=grad_clip,
        )
        return {
            "deepspeed_plugin": plugin,
            "gradient_accumulation_steps": plan.grad_accum_steps,
        }
    if launched.strategy == "ddp":
        # Gradients as views of DDP's buckets save one copy of all gradients.
        ddp = DistributedDataParallelKwargs(gradient_as_bucket_view=True)
        return {"kwargs_handlers": [ddp]}
    if launched.strategy == "single":
        return {}
    return _fsdp2_plugins(launched, {type(block).__name__ for block in blocks}, precision, reduce)


def _fsdp2_plugins(
    launched: Launched, blocks: set[str], precision: Precision, reduce: Reduce | None
) -> dict[str, Any]:
    from accelerate.parallelism_config import ParallelismConfig
    from accelerate.utils import FullyShardedDataParallelPlugin
    from torch.distributed.fsdp import MixedPrecisionPolicy

    admit_sharding()
    plugin = FullyShardedDataParallelPlugin(
        fsdp_version=2,
        reshard_after_forward=frees_after_forward(launched.strategy),
        auto_wrap_policy="transformer_based_wrap",
        transformer_cls_names_to_wrap=sorted(blocks),
        # Whole gradients are held in what they are reduced in; Accelerate's default is bf16.
        mixed_precision_policy=MixedPrecisionPolicy(
            param_dtype=TORCH_DTYPES[precision], reduce_dtype=sum_dtype(reduce)
        ),
        cpu_ram_efficient_loading=False,
    )
    if launched.strategy != "hsdp":
        return {"fsdp_plugin": plugin}
    mesh = ParallelismConfig(
        dp_replicate_size=launched.replicas,
        dp_shard_size=launched.world_size // launched.replicas,
    )
    return {"fsdp_plugin": plugin, "parallelism_config": mesh}
