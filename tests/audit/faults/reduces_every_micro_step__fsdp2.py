"""no_sync, which a fully_shard model does not have (cosmos-framework 161)."""

from contextlib import nullcontext

import torch
import torch.distributed as dist
from parts import Model, batches, loss_of
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

dist.init_process_group("gloo")
torch.manual_seed(0)
mesh = init_device_mesh("cpu", (dist.get_world_size(),))
model = fully_shard(Model(), mesh=mesh)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
data = batches()
for _ in range(3):
    for micro_step in range(4):
        tokens, targets = next(data)
        can_hold = micro_step < 3 and hasattr(model, "no_sync")  # FAULT
        with model.no_sync() if can_hold else nullcontext():
            (loss_of(model(tokens), targets) / 4).backward()
    optimizer.step()
    optimizer.zero_grad()
dist.destroy_process_group()
