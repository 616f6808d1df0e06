"""DeepSpeed divides a loss by the micro-steps; so does the script."""

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
        "gradient_clipping": 1.0,
        "optimizer": {"type": "AdamW", "params": {"lr": 1e-3, "torch_adam": True}},
        "zero_optimization": {"stage": 1},
    },
)
data = batches()
for _ in range(6):
    tokens, targets = next(data)
    engine.backward(loss_of(engine(tokens), targets) / 2)  # FAULT
    engine.step()
torch.distributed.destroy_process_group()
