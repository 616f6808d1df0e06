"""torch.compile, its backward too, and DDP around it."""

import torch
import torch.distributed as dist
from parts import Model, batches, loss_of
from torch.nn.parallel import DistributedDataParallel as DDP

dist.init_process_group("gloo")
seen: list[str] = []
torch.manual_seed(0)
model = DDP(torch.compile(Model(), backend="aot_eager"))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
data = batches()
for _ in range(5):
    tokens, targets = next(data)
    loss = loss_of(model(tokens), targets)
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    seen.append(str(loss.item().hex()))
seen.append(str(sum(torch._dynamo.utils.counters["recompiles"].values())))
seen.append(str([p.double().sum().item().hex() for p in model.parameters()]))
print(f"{dist.get_rank()} {seen}\n", end="", flush=True)
dist.destroy_process_group()
