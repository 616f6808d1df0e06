"""Ranks started by the script itself, with `torch.multiprocessing`, that end after two steps."""

import socket
import sys

import torch
import torch.distributed as dist
import torch.multiprocessing as multiprocessing
from parts import Model, batches, loss_of
from torch.nn.parallel import DistributedDataParallel as DDP


def train(rank: int, rendezvous: str) -> None:
    dist.init_process_group("gloo", init_method=rendezvous, rank=rank, world_size=2)
    torch.manual_seed(0)
    model = DDP(Model())
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    data = batches(rank)
    for _ in range(2):
        tokens, targets = next(data)
        loss_of(model(tokens), targets).backward()
        optimizer.step()
        optimizer.zero_grad()
    dist.barrier()
    sums = [p.double().sum().item().hex() for p in model.parameters()]
    print(f"{rank} {sums}\n", end="", flush=True)
    dist.destroy_process_group()


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


if __name__ == "__main__":
    rendezvous = f"tcp://127.0.0.1:{free_port()}"
    multiprocessing.start_processes(train, (rendezvous,), nprocs=2, start_method=sys.argv[1])
