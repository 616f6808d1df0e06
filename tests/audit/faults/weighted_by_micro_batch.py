"""A mean of means over unequal numbers of targets (transformers 34191)."""

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
        targets[:, : 1 + 4 * micro_step] = -100
        model.require_backward_grad_sync = micro_step == 1
        (loss_of(model(tokens), targets) / 2).backward()  # FAULT
    optimizer.step()
    optimizer.zero_grad()
dist.destroy_process_group()
