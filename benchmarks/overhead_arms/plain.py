"""The loop one would write by hand: PyTorch alone, under DDP or FSDP2, or DeepSpeed alone.

It does what build-nanogpt's `train_gpt2.py` does in a step: accumulate, clip, update, reduce the
loss. Nothing is written and nothing printed. Gradients are views of DDP's buckets, as in the
toolkit; the buckets of DeepSpeed are the toolkit's.
"""

import itertools
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from benchmarks.overhead_arms.arm import ArmOrder, main
from benchmarks.overhead_arms.workload import GRAD_CLIP, build_adamw, build_model

Sync = Callable[[bool], AbstractContextManager[Any]]


def train(order: ArmOrder) -> None:
    """Train until there are no more turns."""
    if order.strategy == "zero2":
        train_deepspeed(order)
        return
    dist.init_process_group("nccl" if torch.cuda.is_available() else "gloo")
    model = build_model(order.workload, order.loss).to(order.device)
    model, sync = with_ddp(model) if order.strategy == "ddp" else with_fsdp2(model)
    optimizer = build_adamw(model)
    loop(order, model, optimizer, sync)


def with_ddp(model: nn.Module) -> tuple[nn.Module, Sync]:
    """Gradients are averaged in the last micro-step."""
    wrapped = nn.parallel.DistributedDataParallel(model, gradient_as_bucket_view=True)
    return wrapped, lambda last: nullcontext() if last else wrapped.no_sync()


def with_fsdp2(model: Any) -> tuple[nn.Module, Sync]:
    """Each block is a unit; gradients are reduced in the last micro-step."""
    from torch.distributed.fsdp import fully_shard

    for block in model.transformer.h:
        fully_shard(block)
    fully_shard(model)

    @contextmanager
    def sync(last: bool) -> Iterator[None]:
        model.set_requires_gradient_sync(last)
        yield

    return model, sync


def loop(order: ArmOrder, model: Any, optimizer: torch.optim.Optimizer, sync: Sync) -> None:
    """Plain PyTorch."""
    micro_batches = order.micro_batches()
    micro_steps = order.workload.grad_accum_steps
    for step in itertools.count():
        order.turns.before_step(step)
        total = torch.zeros((), device=order.device)
        for micro_step in range(micro_steps):
            tokens, targets = next(micro_batches)
            with sync(micro_step == micro_steps - 1):
                loss = model(tokens, targets) / (targets.numel() * micro_steps)
                loss.backward()
            total += loss.detach()
        nn.utils.clip_grad_norm_(model.parameters(), GRAD_CLIP)
        optimizer.step()
        optimizer.zero_grad()
        dist.all_reduce(total)
        order.turns.loss(total.item() / dist.get_world_size())


def train_deepspeed(order: ArmOrder) -> None:
    """DeepSpeed's own engine, driven as its documentation does."""
    import deepspeed

    from toolkit.backends.deepspeed_config import build_deepspeed_config

    deepspeed.init_distributed("nccl" if torch.cuda.is_available() else "gloo")
    model = build_model(order.workload, order.loss).to(order.device)
    engine, *_ = deepspeed.initialize(
        model=model,
        optimizer=build_adamw(model),
        config=build_deepspeed_config(
            "zero2",
            plan=order.plan(),
            sizes=order.workload.sizes,
            precision="fp32",
            grad_clip=GRAD_CLIP,
        ),
    )
    micro_batches = order.micro_batches()
    for step in itertools.count():
        order.turns.before_step(step)
        total = torch.zeros((), device=order.device)
        for _ in range(order.workload.grad_accum_steps):
            tokens, targets = next(micro_batches)
            loss = engine(tokens, targets) / targets.numel()
            engine.backward(loss)
            engine.step()
            total += loss.detach()
        dist.all_reduce(total)
        count = dist.get_world_size() * order.workload.grad_accum_steps
        order.turns.loss(total.item() / count)


if __name__ == "__main__":
    main(train)
