"""A tied weight is listed with both of its modules: the update of AdamW happens twice."""

import torch
import torch.distributed as dist
from parts import Model, batches, loss_of
from torch.nn.parallel import DistributedDataParallel as DDP

dist.init_process_group("gloo")
torch.manual_seed(0)
model = Model(tied=True)
parts = (model.embedding, model.inner, model.head)
parameters = [parameter for part in parts for parameter in part.parameters()]
optimizer = torch.optim.AdamW(parameters, lr=1e-3)  # FAULT
model = DDP(model)
data = batches()
for _ in range(3):
    tokens, targets = next(data)
    loss_of(model(tokens), targets).backward()
    optimizer.step()
    optimizer.zero_grad()
dist.destroy_process_group()
