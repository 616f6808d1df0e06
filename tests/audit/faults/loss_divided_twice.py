"""Accelerate divides by the micro-steps, and so does the script."""

import torch
from accelerate import Accelerator
from parts import Model, batches, loss_of

accelerator = Accelerator(cpu=True, gradient_accumulation_steps=2)
torch.manual_seed(0)
model = Model()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
model, optimizer = accelerator.prepare(model, optimizer)
data = batches()
for _ in range(6):
    tokens, targets = next(data)
    with accelerator.accumulate(model):
        accelerator.backward(loss_of(model(tokens), targets) / 2)  # FAULT
        accelerator.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
accelerator.end_training()
