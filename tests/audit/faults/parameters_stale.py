"""The optimizer is built before fully_shard replaces the parameters."""

import torch
import torch.distributed as dist
from parts import Model, batches, loss_of
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

dist.init_process_group("gloo")
torch.manual_seed(0)
mesh = init_device_mesh("cpu", (dist.get_world_size(),))
model = Model()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)  # FAULT
fully_shard(model, mesh=mesh)
data = batches()
for _ in range(3):
    tokens, targets = next(data)
    loss_of(model(tokens), targets).backward()
    optimizer.step()
    model.zero_grad()
dist.destroy_process_group()
