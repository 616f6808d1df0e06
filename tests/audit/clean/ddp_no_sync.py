"""DDP with no_sync, and a tied head."""

import torch
import torch.distributed as dist
from parts import Model, batches, loss_of
from torch.nn.parallel import DistributedDataParallel as DDP

dist.init_process_group("gloo")
torch.manual_seed(0)
model = DDP(Model(tied=True))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
data = batches()
for _ in range(3):
    for micro_step in range(4):
        tokens, targets = next(data)
        if micro_step < 3:
            with model.no_sync():
                (loss_of(model(tokens), targets) / 4).backward()
        else:
            (loss_of(model(tokens), targets) / 4).backward()
    optimizer.step()
    optimizer.zero_grad()
dist.destroy_process_group()
