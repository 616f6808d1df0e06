"""The last backward and its clipping are in the optimizer's closure, as Lightning has them."""

import torch
import torch.distributed as dist
from parts import Model, batches, loss_of
from torch.nn.parallel import DistributedDataParallel as DDP

dist.init_process_group("gloo")
torch.manual_seed(0)
model = DDP(Model())
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
data = batches()


def backward() -> torch.Tensor:
    tokens, targets = next(data)
    loss = loss_of(model(tokens), targets) / 2
    loss.backward()
    return loss


def last() -> torch.Tensor:
    loss = backward()
    norm = torch.nn.utils.get_total_norm([p.grad for p in model.parameters()])
    torch.nn.utils.clip_grads_with_norm_(model.parameters(), 0.1, norm)
    return loss


for _ in range(3):
    with model.no_sync():
        backward()
    optimizer.step(last)
    optimizer.zero_grad()
dist.destroy_process_group()
