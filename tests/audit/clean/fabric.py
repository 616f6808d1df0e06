"""Fabric that holds gradients back until a window's last micro-step."""

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
    for micro_step in range(4):
        tokens, targets = next(data)
        with fabric.no_backward_sync(model, enabled=micro_step < 3):
            fabric.backward(loss_of(model(tokens), targets) / 4)
    fabric.clip_gradients(model, optimizer, max_norm=1.0)
    optimizer.step()
    optimizer.zero_grad()
