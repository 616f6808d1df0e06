"""Accelerate steps a prepared schedule once per rank."""

import torch
from accelerate import Accelerator
from parts import Model, batches, loss_of

accelerator = Accelerator(cpu=True)
torch.manual_seed(0)
model = Model()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=3)
model, optimizer, schedule = accelerator.prepare(model, optimizer, schedule)
data = batches()
for _ in range(3):
    tokens, targets = next(data)
    accelerator.backward(loss_of(model(tokens), targets))
    optimizer.step()
    schedule.step()  # FAULT
    optimizer.zero_grad()
accelerator.end_training()
