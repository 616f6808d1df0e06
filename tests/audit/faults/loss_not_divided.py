"""Losses of micro-steps are added (the grad norm grows with their number)."""

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
    for micro_step in range(4):
        tokens, targets = next(data)
        model.require_backward_grad_sync = micro_step == 3
        loss_of(model(tokens), targets).backward()  # FAULT
    optimizer.step()
    optimizer.zero_grad()
dist.destroy_process_group()
