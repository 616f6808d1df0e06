"""Hooks of the script's own on modules, parameters and gradients, and a communication hook."""

import gc
from typing import Any

import torch
import torch.distributed as dist
from parts import Model, batches, loss_of
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils._python_dispatch import TorchDispatchMode

dist.init_process_group("gloo")
seen: list[str] = []
torch.manual_seed(0)
inner = Model()
inner.head.weight.register_hook(lambda gradient: gradient * 0.5)
inner.head.weight.register_post_accumulate_grad_hook(lambda _: seen.append("accumulated"))
inner.register_forward_pre_hook(lambda *_: seen.append("forward"))
inner.register_full_backward_hook(lambda *_: seen.append("backward"))
model = DDP(inner)


class Operators(TorchDispatchMode):
    """Keeps the order of all operators, collectives among them."""

    def __torch_dispatch__(self, operator: Any, types: Any, args: Any = (), kwargs: Any = None):
        seen.append(operator.name())
        return operator(*args, **(kwargs or {}))


def halved(_, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
    seen.append(f"bucket {bucket.index()}")
    work = dist.all_reduce(bucket.buffer().div_(2), async_op=True).get_future()
    return work.then(lambda done: done.value()[0])


model.register_comm_hook(None, halved)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
data = batches()
for _ in range(5):
    tokens, targets = next(data)
    model.require_backward_grad_sync = True
    loss = loss_of(torch.nn.functional.dropout(model(tokens), 0.1), targets)
    with Operators():
        (loss / 2).backward()
    seen.append(
        str((loss.item().hex(), [p.grad.double().sum().item().hex() for p in model.parameters()]))
    )
    optimizer.step()
    optimizer.zero_grad()
seen.append(torch.rand(1).item().hex())
print(f"{dist.get_rank()} {seen}\n", end="", flush=True)
# A thread of gloo's frees the callback of `then`; if it still does as Python ends, the rank aborts.
del model
gc.collect()
dist.destroy_process_group()
