"""What every arm is started with."""

import json
import os
import sys
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

import torch

from benchmarks.overhead_arms.turns import Turns
from benchmarks.overhead_arms.workload import Loss, Workload, own_micro_batches
from toolkit.backends.strategies import Strategy
from toolkit.batching import BatchPlan, plan_batch


@dataclass(frozen=True, kw_only=True)
class ArmOrder:
    """One arm's orders, the same on all its ranks.

    Attributes:
        data: folder of the token shard.
        folder: for what the arm writes.
    """

    name: str
    strategy: Strategy
    loss: Loss
    workload: Workload
    data: Path
    folder: Path
    turns: Turns

    @property
    def device(self) -> torch.device:
        """This rank's."""
        local_rank = int(os.environ.get("LOCAL_RANK", "0"))
        return (
            torch.device("cuda", local_rank) if torch.cuda.is_available() else torch.device("cpu")
        )

    def plan(self) -> BatchPlan:
        """How a step is cut."""
        return plan_batch(
            tokens_per_step=self.workload.tokens_per_step,
            seq_len=self.workload.seq_len,
            micro_batch_size=self.workload.micro_batch_size,
            world_size=self.workload.world_size,
        )

    def micro_batches(self) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        """This rank's micro-batches, one after another, on its device."""
        rank = int(os.environ["RANK"])
        for tokens, targets in own_micro_batches(self.workload, self.data, rank=rank):
            yield tokens.to(self.device), targets.to(self.device)


def write_order(
    file: Path,
    *,
    name: str,
    strategy: Strategy,
    loss: Loss,
    workload: Workload,
    data: Path,
    port: int,
) -> None:
    """Leave an order for the arm to read."""
    order = {"name": name, "strategy": strategy, "loss": loss, "data": str(data), "port": port}
    file.write_text(json.dumps({**order, "workload": asdict(workload)}))


def main(train: Callable[[ArmOrder], None]) -> None:
    """Read the order named on the command line and train."""
    file = Path(sys.argv[1])
    order = json.loads(file.read_text())
    workload = Workload(**order["workload"])
    if torch.cuda.is_available():
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    turns = Turns(port=order["port"], arm=order["name"], steps_per_turn=workload.steps_per_turn)
    train(
        ArmOrder(
            name=order["name"],
            strategy=order["strategy"],
            loss=order["loss"],
            workload=workload,
            data=Path(order["data"]),
            folder=file.parent,
            turns=turns,
        )
    )
