"""Negative controls: faults of the kind that stay hidden in a loss curve, put in on purpose.

Each control breaks one thing in an engine that is otherwise like a run's. A proof that passes all
the same proves nothing, so `toolkit verify --controls` asks that every one of them is caught.

A fault goes in through PyTorch's hooks and the engine's attributes: no method is replaced.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import count
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.futures import Future

from toolkit.engines.engine import Engine
from toolkit.engines.mixture import ROOT, Mixture
from toolkit.engines.strategies import Strategy
from toolkit.model.loss import IGNORE_INDEX
from toolkit.training.schedule import lr_at
from toolkit.verify.cases import TINY, VARIANT_STEPS, Case, global_batch

Fault = Callable[[Engine, Case], None]

CASE = Case(accumulation="replicated", grad_accum_steps=4)
MIXED = replace(CASE, accumulation=Mixture(hold=(ROOT, 0)), steps=VARIANT_STEPS)
WHOLE_VOCABULARY = replace(CASE, steps=VARIANT_STEPS, whole_vocabulary=True)


def no_fault(engine: Engine, case: Case) -> None:
    """Leave the engine as it is."""


def _scale_gradients(engine: Engine, factor: float) -> None:
    """Multiply every gradient, and no loss."""

    def scale(module: nn.Module, inputs: Any, loss: torch.Tensor) -> None:
        loss.register_hook(lambda gradient: gradient * factor)

    engine.model.register_forward_hook(scale)


def divide_twice(engine: Engine, case: Case) -> None:
    """Take the mean over micro-steps of what is a share of the mean already."""
    _scale_gradients(engine, 1 / case.grad_accum_steps)


def divide_by_world_size(engine: Engine, case: Case) -> None:
    """Average over ranks what the engine averages as well."""
    _scale_gradients(engine, 1 / engine.world_size)


def skip_the_last_all_reduce(engine: Engine, case: Case) -> None:
    """Keep gradients local in the last micro-step too."""
    engine.model.require_backward_grad_sync = False


def communicate_at_every_micro_step(engine: Engine, case: Case) -> None:
    """Take another mode than was asked, which keeps no micro-step quiet."""
    engine.accumulation = "sharded"


def set_the_sync_flag_recursively(engine: Engine, case: Case) -> None:
    """Set every unit's flag through the root, as Accelerate's `no_sync` does to FSDP2."""
    engine.model.register_forward_pre_hook(
        lambda *_: engine.model.set_requires_gradient_sync(engine.at_boundary)
    )


def flip_the_sync_flag_after_forward(engine: Engine, case: Case) -> None:
    """DDP reads its flag in the forward pass; set before the backward, it comes too late."""
    communicate_at_every_micro_step(engine, case)

    def unset(*_: Any) -> None:
        engine.model.require_backward_grad_sync = False

    def set_at_boundary(*_: Any) -> None:
        engine.model.require_backward_grad_sync = engine.at_boundary

    engine.model.register_forward_pre_hook(unset)
    engine.model.register_forward_hook(set_at_boundary)


def untie_the_head(engine: Engine, case: Case) -> None:
    """Give the head a copy of the embedding."""
    head: Any = engine.module.get_submodule("lm_head")
    head.weight = nn.Parameter(head.weight.detach().clone())


def update_stale_parameters(engine: Engine, case: Case) -> None:
    """Let the optimizer hold copies, as if it had been built before the model was wrapped."""
    for group in engine.optimizer.param_groups:
        group["params"] = [nn.Parameter(p.detach().clone()) for p in group["params"]]


def step_the_schedule_per_rank(engine: Engine, case: Case) -> None:
    """Let the schedule run as many times too fast as there are ranks."""
    passes = count()

    def set_too_far(*_: Any) -> None:
        step = next(passes) // case.grad_accum_steps * engine.world_size
        engine.set_lr(lr_at(step, case.optimizer_config(), steps=case.steps))

    engine.model.register_forward_pre_hook(set_too_far)


def clip_before_averaging(engine: Engine, case: Case) -> None:
    """Clip each rank's own gradient, before the average whose norm is meant."""

    def clip_then_reduce(state: None, bucket: dist.GradBucket) -> Future[torch.Tensor]:
        own = bucket.buffer()
        own.mul_((case.grad_clip / own.norm()).clamp(max=1)).div_(engine.world_size)
        reduced = dist.all_reduce(own, async_op=True).get_future()
        return reduced.then(lambda done: done.value()[0])

    engine.model.register_comm_hook(None, clip_then_reduce)


def forget_the_tied_weight(engine: Engine, case: Case) -> None:
    """Clip by the norm of all parameters but the one that the head shares."""
    tied = engine.module.get_parameter("lm_head.weight")
    engine.parameters = [p for p in engine.parameters if p is not tied]


def misjudge_the_norm(engine: Engine, case: Case) -> None:
    """Take the gradient for a ten-thousandth longer than it is."""
    norm = engine.norm
    engine.norm = lambda gradients, sum_over_shards: norm(gradients, sum_over_shards) * (1 + 1e-4)


def repeat_one_ranks_data(engine: Engine, case: Case) -> None:
    """Let every rank read rank 0's part."""
    engine.launched = replace(engine.launched, rank=0)


def take_the_mean_of_means(engine: Engine, case: Case) -> None:
    """Weigh micro-batches alike, however many of their targets are valid."""
    head: Any = engine.module.get_submodule("lm_head")
    passes = count()

    def reweigh(module: nn.Module, inputs: tuple[torch.Tensor, ...], loss: torch.Tensor) -> Any:
        # All that the batches follow from.
        sizes = replace(TINY, vocab_size=head.out_features, block_size=inputs[0].shape[1])
        _, targets = global_batch(next(passes) // case.grad_accum_steps, case, sizes)
        micro_batches = case.grad_accum_steps * engine.world_size
        mean_valid = (targets != IGNORE_INDEX).sum().to(loss.device) / micro_batches
        return loss * mean_valid / (inputs[1] != IGNORE_INDEX).sum()

    engine.model.register_forward_hook(reweigh)


def leave_gradients_over(engine: Engine, case: Case) -> None:
    """Start each step on what the last one left."""
    left: list[torch.Tensor] = []

    def keep(*_: Any) -> None:
        left.extend(p.grad.clone() for p in engine.parameters if p.grad is not None)

    def put_back(*_: Any) -> None:
        for parameter, gradient in zip(engine.parameters, left, strict=False):
            parameter.grad = gradient if parameter.grad is None else parameter.grad.add_(gradient)
        left.clear()

    engine.optimizer.register_step_post_hook(keep)
    engine.model.register_forward_pre_hook(put_back)


def nudge_one_replica(engine: Engine, case: Case) -> None:
    """Move one weight of the last rank to the next number."""
    if engine.rank == engine.world_size - 1:
        weight = engine.module.get_parameter("transformer.wte.weight").data
        weight[0, 0] = torch.nextafter(weight[0, 0], torch.tensor(1.0))


@dataclass(frozen=True)
class Control:
    """A fault, the case it is put into, and the strategies it is put into there."""

    name: str
    fault: Fault
    strategies: tuple[Strategy, ...] = ("ddp",)
    case: Case = CASE


CONTROLS: tuple[Control, ...] = (
    Control("divide twice", divide_twice, ("ddp", "fsdp2", "zero2")),
    Control("divide by world size", divide_by_world_size, ("ddp", "zero2")),
    Control("skip the last all-reduce", skip_the_last_all_reduce),
    Control("communicate at every micro-step", communicate_at_every_micro_step, ("ddp", "fsdp2")),
    Control("mixture undone by recursion", set_the_sync_flag_recursively, ("fsdp2",), MIXED),
    Control("sync flag flipped after forward", flip_the_sync_flag_after_forward),
    Control("untied head", untie_the_head, ("ddp", "fsdp2", "zero2")),
    Control("stale optimizer parameters", update_stale_parameters),
    Control("scheduler stepped per rank", step_the_schedule_per_rank, ("ddp", "zero2")),
    Control("clip before averaging", clip_before_averaging),
    Control("norm without the tied weight", forget_the_tied_weight, ("ddp", "fsdp2")),
    Control("norm off by 1e-4", misjudge_the_norm, ("ddp", "fsdp2"), WHOLE_VOCABULARY),
    Control("one rank's data repeated", repeat_one_ranks_data, ("ddp", "fsdp2", "zero2")),
    Control("mean of means", take_the_mean_of_means, ("ddp", "fsdp2", "zero2")),
    Control("gradients left over", leave_gradients_over, ("ddp", "fsdp2")),
    Control("one replica's weight nudged", nudge_one_replica),
)
