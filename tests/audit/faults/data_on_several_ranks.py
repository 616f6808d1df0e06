"""Every rank draws the same batches: no distributed sampler."""

import torch
import torch.distributed as dist
from parts import Model, batches, loss_of
from torch.nn.parallel import DistributedDataParallel as DDP

dist.init_process_group("gloo")
torch.manual_seed(0)
model = DDP(Model())
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
data = batches(seed=0)
for _ in range(3):
    tokens, targets = next(data)
    loss_of(model(tokens), targets).backward()  # FAULT
    optimizer.step()
    optimizer.zero_grad()
dist.destroy_process_group()
