"""DeepSpeed 0.18.6 to 0.18.10 lose the last micro-step under stage 1 with fp32 sums (7985)."""

import deepspeed
import torch
from parts import Model, batches, loss_of

torch.manual_seed(0)
model = Model()
engine, *_ = deepspeed.initialize(
    model=model,
    model_parameters=model.parameters(),
    config={
        "train_micro_batch_size_per_gpu": 4,
        "gradient_accumulation_steps": 2,
        "bf16": {"enabled": True},
        "data_types": {"grad_accum_dtype": "fp32"},
        "optimizer": {"type": "AdamW", "params": {"lr": 1e-3, "torch_adam": True}},
        "zero_optimization": {"stage": 1},
    },
)
data = batches()
for _ in range(6):
    tokens, targets = next(data)
    engine.backward(loss_of(engine(tokens), targets))
    engine.step()  # FAULT
torch.distributed.destroy_process_group()
