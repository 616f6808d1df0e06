"""A part of the model is in no group of the optimizer."""

import torch
import torch.distributed as dist
from parts import Model, batches, loss_of
from torch.nn.parallel import DistributedDataParallel as DDP

dist.init_process_group("gloo")
torch.manual_seed(0)
model = DDP(Model())
optimizer = torch.optim.AdamW(model.module.inner.parameters(), lr=1e-3)  # FAULT
data = batches()
for _ in range(3):
    tokens, targets = next(data)
    loss_of(model(tokens), targets).backward()
    optimizer.step()
    model.zero_grad()
dist.destroy_process_group()
