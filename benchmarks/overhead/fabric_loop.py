"""Lightning Fabric under DDP or FSDP2, in the loop that its documentation shows."""

import itertools
from typing import Any

import torch
from lightning.fabric import Fabric
from lightning.fabric.strategies import DDPStrategy, ModelParallelStrategy

from benchmarks.overhead.turns import LoopOrder, Turns, main
from benchmarks.overhead.workload import GRAD_CLIP, build_adamw, build_model


def shard(model: Any, mesh: Any) -> Any:
    """Shard each block as a unit."""
    from torch.distributed.fsdp import fully_shard

    data_parallel = mesh["data_parallel"]
    for block in model.transformer.h:
        fully_shard(block, mesh=data_parallel)
    return fully_shard(model, mesh=data_parallel)


def build_fabric(order: LoopOrder) -> Fabric:
    """Return Fabric for the launched processes, with its defaults."""
    world_size = order.workload.world_size
    strategy = (
        DDPStrategy()
        if order.case.strategy == "ddp"
        else ModelParallelStrategy(shard, data_parallel_size=world_size, tensor_parallel_size=1)
    )
    accelerator = "cuda" if torch.cuda.is_available() else "cpu"
    return Fabric(accelerator=accelerator, devices=world_size, strategy=strategy)


def train(order: LoopOrder, turns: Turns) -> None:
    """Train until there are no more turns."""
    fabric = build_fabric(order)
    fabric.launch()
    model = fabric.setup_module(build_model(order.workload, order.case.loss))
    optimizer = fabric.setup_optimizers(build_adamw(model))
    micro_batches = order.micro_batches()
    micro_steps = order.workload.grad_accum_steps
    for step in itertools.count():
        turns.before_step(step)
        total = torch.zeros((), device=fabric.device)
        for micro_step in range(micro_steps):
            tokens, targets = next(micro_batches)
            with fabric.no_backward_sync(model, enabled=micro_step < micro_steps - 1):
                loss = model(tokens, targets) / (targets.numel() * micro_steps)
                fabric.backward(loss)
            total += loss.detach()
        fabric.clip_gradients(model, optimizer, max_norm=GRAD_CLIP)
        optimizer.step()
        optimizer.zero_grad()
        turns.loss(fabric.all_reduce(total, reduce_op="mean").item())


if __name__ == "__main__":
    main(train)
