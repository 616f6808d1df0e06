"""FSDP1 averages, and the script divides by the number of ranks as well (torchtitan 2318)."""

import torch
import torch.distributed as dist
from parts import Model, batches, loss_of
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP

dist.init_process_group("gloo")
torch.manual_seed(0)
model = FSDP(Model(), device_id=torch.device("cpu"), use_orig_params=True)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
data = batches()
for _ in range(3):
    tokens, targets = next(data)
    loss_of(model(tokens), targets).backward()
    for parameter in model.parameters():
        if parameter.grad is not None:
            parameter.grad /= dist.get_world_size()
    optimizer.step()  # FAULT
    optimizer.zero_grad()
dist.destroy_process_group()
