"""Clipping by hand under ZeRO, whose gradients are not on the parameters."""

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
        "gradient_clipping": 0.0,
        "optimizer": {"type": "AdamW", "params": {"lr": 1e-3, "torch_adam": True}},
        "zero_optimization": {"stage": 2},
    },
)
data = batches()
for _ in range(3):
    tokens, targets = next(data)
    engine.backward(loss_of(engine(tokens), targets))
    torch.nn.utils.clip_grad_norm_(engine.parameters(), 0.5)  # FAULT
    engine.step()
torch.distributed.destroy_process_group()
