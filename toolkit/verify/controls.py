"""Negative controls: faults of the kind that stay hidden in a loss curve, put in on purpose.

Each control breaks one thing in an engine that is otherwise like a run's. A proof that passes all
the same proves nothing, so `toolkit verify --controls` asks that every one of them is caught.
"""

from collections.abc import Callable, Iterator
from contextlib import nullcontext
from dataclasses import dataclass, replace
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.futures import Future

from toolkit.engines.engine import Engine
from toolkit.engines.strategies import Strategy
from toolkit.model.loss import IGNORE_INDEX
from toolkit.training.schedule import lr_at
from toolkit.verify.cases import VARIANT_STEPS, Case

Break = Callable[[Engine, Case], None]
Batches = Any

CASE = Case(accumulation="replicated", grad_accum_steps=4)
WHOLE_VOCABULARY = replace(CASE, steps=VARIANT_STEPS, whole_vocabulary=True)


def break_nothing(engine: Engine, case: Case) -> None:
    """Leave the engine as it is."""


def divide_twice(engine: Engine, case: Case) -> None:
    """Take the mean over micro-steps of what is a share of the mean already."""
    backward = engine.backward
    engine.backward = lambda loss: backward(loss / case.grad_accum_steps)  # type: ignore[method-assign]


def divide_by_world_size(engine: Engine, case: Case) -> None:
    """Average over ranks what the engine averages as well."""
    backward = engine.backward
    engine.backward = lambda loss: backward(loss / engine.world_size)  # type: ignore[method-assign]


def skip_the_last_all_reduce(engine: Engine, case: Case) -> None:
    """Keep gradients local in the last micro-step too."""
    accumulate = engine.accumulate

    def never_reduce(micro_batches: Batches) -> Iterator[Any]:
        for micro_batch in accumulate(micro_batches):
            with engine.model.no_sync():
                yield micro_batch

    engine.accumulate = never_reduce  # type: ignore[method-assign]


def communicate_at_every_micro_step(engine: Engine, case: Case) -> None:
    """Forget what keeps the earlier micro-steps quiet."""
    engine._before_last_micro_step = nullcontext  # type: ignore[method-assign]


def flip_the_sync_flag_after_forward(engine: Engine, case: Case) -> None:
    """DDP reads its flag in the forward pass; set before the backward, it comes too late."""
    communicate_at_every_micro_step(engine, case)
    backward = engine.backward
    engine.model.require_backward_grad_sync = False

    def flip_then_backward(loss: torch.Tensor) -> None:
        engine.model.require_backward_grad_sync = engine.at_boundary
        backward(loss)
        engine.model.require_backward_grad_sync = False

    engine.backward = flip_then_backward  # type: ignore[method-assign]


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
    set_lr, steps = engine.set_lr, iter(range(0, case.steps * engine.world_size, engine.world_size))
    engine.set_lr = lambda lr: set_lr(  # type: ignore[method-assign]
        lr_at(next(steps), case.optimizer_config(), steps=case.steps)
    )


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
    begin_sum = engine.ranks.begin_sum
    valid_in_step = [torch.tensor(0)]

    def sum_and_remember(value: torch.Tensor) -> Callable[[], torch.Tensor]:
        finish = begin_sum(value)
        if not value.is_floating_point():
            valid_in_step[0] = finish()
        return finish

    def reweigh(module: nn.Module, inputs: tuple[torch.Tensor, ...], loss: torch.Tensor) -> Any:
        mean_valid = valid_in_step[0] / (case.grad_accum_steps * engine.world_size)
        return loss * mean_valid / (inputs[1] != IGNORE_INDEX).sum()

    engine.ranks.begin_sum = sum_and_remember  # type: ignore[method-assign]
    engine.model.register_forward_hook(reweigh)


def leave_gradients_over(engine: Engine, case: Case) -> None:
    """Start each step on what the last one left."""
    engine._clear_gradients = lambda: None  # type: ignore[method-assign]


def nudge_one_replica(engine: Engine, case: Case) -> None:
    """Move one weight of the last rank to the next number."""
    if engine.rank == engine.world_size - 1:
        weight = engine.module.get_parameter("transformer.wte.weight").data
        weight[0, 0] = torch.nextafter(weight[0, 0], torch.tensor(1.0))


@dataclass(frozen=True)
class Control:
    """A fault, the case it is put into, and the strategies it is put into there."""

    name: str
    break_it: Break
    strategies: tuple[Strategy, ...] = ("ddp",)
    case: Case = CASE


CONTROLS: tuple[Control, ...] = (
    Control("divide twice", divide_twice, ("ddp", "fsdp2", "zero2")),
    Control("divide by world size", divide_by_world_size, ("ddp", "zero2")),
    Control("skip the last all-reduce", skip_the_last_all_reduce),
    Control("communicate at every micro-step", communicate_at_every_micro_step, ("ddp", "fsdp2")),
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
