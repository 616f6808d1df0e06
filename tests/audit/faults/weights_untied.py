"""A tied head comes apart after the optimizer was built."""

import torch
import torch.distributed as dist
from parts import Model, batches, loss_of
from torch.nn.parallel import DistributedDataParallel as DDP

dist.init_process_group("gloo")
torch.manual_seed(0)
model = Model(tied=True)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)  # FAULT
model.head.weight = torch.nn.Parameter(model.head.weight.detach().clone())
model = DDP(model)
data = batches()
for _ in range(3):
    tokens, targets = next(data)
    loss_of(model(tokens), targets).backward()
    optimizer.step()
    model.zero_grad()
dist.destroy_process_group()
