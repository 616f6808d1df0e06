"""Accelerate 1.10.1: `accumulate` holds nothing back under `fully_shard` (3762)."""

import torch
from accelerate import Accelerator
from parts import Model, batches, loss_of
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

accelerator = Accelerator(cpu=True, gradient_accumulation_steps=4)
torch.manual_seed(0)
model = fully_shard(Model(), mesh=init_device_mesh("cpu", (accelerator.num_processes,)))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
optimizer = accelerator.prepare(optimizer)
data = batches()
for _ in range(12):
    tokens, targets = next(data)
    with accelerator.accumulate(model):
        accelerator.backward(loss_of(model(tokens), targets))  # FAULT
        optimizer.step()
        optimizer.zero_grad()
accelerator.end_training()
