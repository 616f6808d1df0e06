"""FSDP1 over nested units and the original parameters; gradients are held back."""

from contextlib import nullcontext

import torch
import torch.distributed as dist
from parts import Model, batches, loss_of
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP

dist.init_process_group("gloo")
torch.manual_seed(0)
inner = Model()
inner.inner = FSDP(inner.inner, device_id=torch.device("cpu"), use_orig_params=True)
model = FSDP(inner, device_id=torch.device("cpu"), use_orig_params=True)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
data = batches()
for _ in range(3):
    for micro_step in range(2):
        tokens, targets = next(data)
        with nullcontext() if micro_step else model.no_sync():
            (loss_of(model(tokens), targets) / 2).backward()
    optimizer.step()
    optimizer.zero_grad()
dist.destroy_process_group()
