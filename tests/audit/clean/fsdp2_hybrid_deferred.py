"""`fully_shard` on a mesh of two dimensions; replicas are averaged at the last micro-step alone."""

import torch
import torch.distributed as dist
from parts import Model, batches, loss_of
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

dist.init_process_group("gloo")
torch.manual_seed(0)
mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("replicas", "shards"))
model = fully_shard(Model(), mesh=mesh)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
data = batches()
for _ in range(3):
    for micro_step in range(2):
        model.set_requires_all_reduce(micro_step == 1)
        tokens, targets = next(data)
        (loss_of(model(tokens), targets) / 2).backward()
    optimizer.step()
    optimizer.zero_grad()
dist.destroy_process_group()
