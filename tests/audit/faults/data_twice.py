"""The batch is drawn outside the loop over micro-steps."""

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
    for micro_step in range(2):
        model.require_backward_grad_sync = micro_step == 1
        (loss_of(model(tokens), targets) / 2).backward()  # FAULT
    optimizer.step()
    optimizer.zero_grad()
dist.destroy_process_group()
