"""Gradients pile up: zero_grad clears another optimizer's."""

import torch
import torch.distributed as dist
from parts import Model, batches, loss_of
from torch.nn.parallel import DistributedDataParallel as DDP

dist.init_process_group("gloo")
torch.manual_seed(0)
model = DDP(Model())
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
data = batches()
for _ in range(3):
    tokens, targets = next(data)
    loss_of(model(tokens), targets).backward()
    optimizer.zero_grad = lambda: None
    optimizer.step()  # FAULT
    optimizer.zero_grad()
dist.destroy_process_group()
