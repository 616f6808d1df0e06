"""Fabric without no_backward_sync: DDP reduces at every micro-step."""

import torch
from lightning.fabric import Fabric
from parts import Model, batches, loss_of

fabric = Fabric(accelerator="cpu", devices=2, strategy="ddp")
fabric.launch()
fabric.seed_everything(0)
model = Model()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
model, optimizer = fabric.setup(model, optimizer)
data = batches()
for _ in range(3):
    for _ in range(4):
        tokens, targets = next(data)
        fabric.backward(loss_of(model(tokens), targets) / 4)  # FAULT
    optimizer.step()
    optimizer.zero_grad()
