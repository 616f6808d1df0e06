"""What a case is started with, the same on all its ranks."""

import json
import os
import signal
import sys
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

import torch

from benchmarks.overhead.turns import Turns
from benchmarks.overhead.workload import Loss, Workload
from toolkit.engines.strategies import Strategy
from toolkit.launch.ownership import follow

Train = Callable[["Order", Turns], None]


@dataclass(frozen=True, kw_only=True)
class Order:
    """One case's orders.

    Attributes:
        data: folder of the token shard.
        folder: for what the case writes.
        port: of the driver's store.
    """

    name: str
    strategy: Strategy
    loss: Loss
    workload: Workload
    data: Path
    folder: Path
    port: int

    def micro_batches(self) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        """Yield this rank's micro-batches, one after another, on its device."""
        for batch in self.workload.micro_batches(self.data, rank=int(os.environ["RANK"])):
            tokens, targets = (part.to(own_device()) for part in batch)
            yield tokens, targets


def own_device() -> torch.device:
    """Return this rank's device."""
    if torch.cuda.is_available():
        return torch.device("cuda", int(os.environ["LOCAL_RANK"]))
    return torch.device("cpu")


def write_order(order: Order) -> Path:
    """Leave an order for its case in the case's folder; return the file."""
    file = order.folder / "order.json"
    file.write_text(json.dumps(asdict(order), default=str))
    return file


def read_order(file: Path) -> Order:
    """Return what `write_order` left."""
    fields = json.loads(file.read_text())
    paths = {name: Path(fields[name]) for name in ("data", "folder")}
    return Order(**{**fields, **paths, "workload": Workload(**fields["workload"])})


def main(train: Train) -> None:
    """Train as the order file on the command line says, until there are no more turns."""
    follow(signal.SIGKILL)
    order = read_order(Path(sys.argv[1]))
    if torch.cuda.is_available():
        torch.cuda.set_device(own_device())
    steps_per_turn = order.workload.steps_per_turn
    train(order, Turns(port=order.port, case=order.name, steps_per_turn=steps_per_turn))
