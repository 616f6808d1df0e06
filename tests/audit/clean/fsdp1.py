"""FSDP1 with one flat parameter, which reduces at each micro-step, and its own clipping."""

import torch
import torch.distributed as dist
from parts import Model, batches, loss_of
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP

dist.init_process_group("gloo")
torch.manual_seed(0)
model = FSDP(Model(), device_id=torch.device("cpu"))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
data = batches()
for _ in range(3):
    for _ in range(2):
        tokens, targets = next(data)
        (loss_of(model(tokens), targets) / 2).backward()
    model.clip_grad_norm_(0.1)
    optimizer.step()
    optimizer.zero_grad()
dist.destroy_process_group()
