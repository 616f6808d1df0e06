"""Accelerate's accumulate reduces at every micro-step under ZeRO-2 (Accelerate 3481, 3656)."""

import os

import torch
from accelerate import Accelerator, DeepSpeedPlugin
from parts import Model, batches, loss_of

os.environ["ACCELERATE_USE_DEEPSPEED"] = "true"
plugin = DeepSpeedPlugin(zero_stage=2, gradient_accumulation_steps=4, gradient_clipping=1.0)
plugin.deepspeed_config.update(train_micro_batch_size_per_gpu=4, train_batch_size=32)
accelerator = Accelerator(gradient_accumulation_steps=4, deepspeed_plugin=plugin)
torch.manual_seed(0)
model = Model()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
model, optimizer = accelerator.prepare(model, optimizer)
data = batches()
for _ in range(12):
    tokens, targets = next(data)
    with accelerator.accumulate(model):
        accelerator.backward(loss_of(model(tokens), targets))  # FAULT
        optimizer.step()
        optimizer.zero_grad()
accelerator.end_training()
