"""FSDP2 that holds gradients back."""

import torch
import torch.distributed as dist
from parts import Model, batches, loss_of
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

dist.init_process_group("gloo")
torch.manual_seed(0)
mesh = init_device_mesh("cpu", (dist.get_world_size(),))
model = fully_shard(Model(tied=True), mesh=mesh)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
data = batches()
for _ in range(3):
    for micro_step in range(2):
        tokens, targets = next(data)
        model.set_requires_gradient_sync(micro_step == 1)
        (loss_of(model(tokens), targets) / 2).backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    optimizer.zero_grad()
dist.destroy_process_group()
