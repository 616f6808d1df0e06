"""Unequal targets, summed and divided by their number on all ranks."""

import torch
import torch.distributed as dist
from parts import Model, batches
from torch.nn.parallel import DistributedDataParallel as DDP

dist.init_process_group("gloo")
torch.manual_seed(0)
model = DDP(Model())
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
data = batches()
for _ in range(3):
    window = [next(data) for _ in range(2)]
    for number, (_, targets) in enumerate(window):
        targets[:, : 1 + 4 * number] = -100
    count = torch.tensor(sum(int((targets != -100).sum()) for _, targets in window))
    dist.all_reduce(count)
    for micro_step, (tokens, targets) in enumerate(window):
        model.require_backward_grad_sync = micro_step == 1
        logits = model(tokens).flatten(0, 1)
        total = torch.nn.functional.cross_entropy(logits, targets.flatten(), reduction="sum")
        (total * dist.get_world_size() / count).backward()
    optimizer.step()
    optimizer.zero_grad()
dist.destroy_process_group()
