"""Zeroed inside the window: all micro-steps but the last are lost."""

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
    for micro_step in range(2):
        tokens, targets = next(data)
        optimizer.zero_grad()
        model.require_backward_grad_sync = micro_step == 1
        (loss_of(model(tokens), targets) / 2).backward()
    optimizer.step()  # FAULT
    optimizer.zero_grad()
dist.destroy_process_group()
