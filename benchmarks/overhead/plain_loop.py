"""The loop one would write by hand: PyTorch alone under DDP or FSDP2, or DeepSpeed alone.

A step does what that of build-nanogpt's `train_gpt2.py` does: accumulate, clip, update, reduce the
loss and read it. Nothing is written and nothing printed. It is given what makes it fast: the fused
optimizer, gradients as views of DDP's buckets, and under DeepSpeed the toolkit's buckets.
"""

import itertools
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from benchmarks.overhead.turns import LoopOrder, Turns, main, own_device
from benchmarks.overhead.workload import GRAD_CLIP, build_adamw, build_model
from toolkit.batching import plan_batch

Sync = Callable[[bool], AbstractContextManager[Any]]
"""The context of a micro-step, given whether it is the last."""


def train(order: LoopOrder, turns: Turns) -> None:
    """Train until there are no more turns."""
    backend = "nccl" if torch.cuda.is_available() else "gloo"
    if order.case.strategy == "zero2":
        train_deepspeed(order, turns, backend)
        return
    dist.init_process_group(backend)
    built = build_model(order.workload, order.case.loss).to(own_device())
    model, sync = with_ddp(built) if order.case.strategy == "ddp" else with_fsdp2(built)
    loop(order, turns, model, build_adamw(model), sync)


def with_ddp(model: nn.Module) -> tuple[nn.Module, Sync]:
    """Average gradients in the last micro-step."""
    wrapped = nn.parallel.DistributedDataParallel(model, gradient_as_bucket_view=True)
    return wrapped, lambda last: nullcontext() if last else wrapped.no_sync()


def with_fsdp2(model: Any) -> tuple[nn.Module, Sync]:
    """Shard each block as a unit; reduce gradients in the last micro-step."""
    from torch.distributed.fsdp import fully_shard

    for block in model.transformer.h:
        fully_shard(block)
    fully_shard(model)

    @contextmanager
    def sync(last: bool) -> Iterator[None]:
        model.set_requires_gradient_sync(last)
        yield

    return model, sync


def loop(
    order: LoopOrder, turns: Turns, model: nn.Module, optimizer: torch.optim.Optimizer, sync: Sync
) -> None:
    """Train with PyTorch alone."""
    micro_batches = order.micro_batches()
    micro_steps = order.workload.grad_accum_steps
    for step in itertools.count():
        turns.before_step(step)
        total = torch.zeros((), device=own_device())
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
        turns.loss(total.item() / dist.get_world_size())


def train_deepspeed(order: LoopOrder, turns: Turns, backend: str) -> None:
    """Train with DeepSpeed's own engine, driven as its documentation does."""
    import deepspeed

    from toolkit.engines.deepspeed_config import build_deepspeed_config
    from toolkit.engines.process_group import build_extensions_here

    build_extensions_here(announce=False)
    deepspeed.init_distributed(backend)
    workload = order.workload
    plan = plan_batch(
        tokens_per_step=workload.tokens_per_step,
        seq_len=workload.seq_len,
        micro_batch_size=workload.micro_batch_size,
        world_size=workload.world_size,
    )
    model = build_model(workload, order.case.loss).to(own_device())
    engine, *_ = deepspeed.initialize(
        model=model,
        optimizer=build_adamw(model),
        config=build_deepspeed_config(
            "zero2",
            "sharded",
            plan=plan,
            sizes=workload.sizes,
            precision="fp32",
            grad_clip=GRAD_CLIP,
        ),
    )
    micro_batches = order.micro_batches()
    for step in itertools.count():
        turns.before_step(step)
        total = torch.zeros((), device=own_device())
        for _ in range(workload.grad_accum_steps):
            tokens, targets = next(micro_batches)
            loss = engine(tokens, targets) / targets.numel()
            engine.backward(loss)
            engine.step()
            total += loss.detach()
        dist.all_reduce(total)
        turns.loss(total.item() / (dist.get_world_size() * workload.grad_accum_steps))


if __name__ == "__main__":
    main(train)
