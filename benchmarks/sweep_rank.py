"""One launched process of a sweep's case: build it, then do what the driver asks for.

Started by `accelerate launch` with a shipped launch file, like any run.
"""

import os
from datetime import timedelta
from multiprocessing.connection import Connection

from benchmarks.group import Order
from benchmarks.proof import first_step, prove
from benchmarks.rank import serve
from benchmarks.trainer import CaseTrainer
from toolkit.engines.launched import read_launch
from toolkit.engines.process_group import (
    leave_process_group,
    lift_time_limits,
    start_process_group,
)
from toolkit.launch.exit_code import end_process


class SweepOrder(Order):
    """What a process of a sweep is to do.

    Attributes:
        shards: prepared data, where the case trains on real data.
        warm_up_steps: before each repeat.
        split_steps: instrumented ones.
    """

    shards: list[str]
    warm_up_steps: int
    split_steps: int


def answer(order: SweepOrder, driver: Connection) -> None:
    """Build the case and do what the driver asks for until it asks for no more."""
    launched = read_launch(os.environ)
    device = start_process_group(launched, timeout=timedelta(seconds=order.timeout_s))
    lift_time_limits()  # the driver ends it all after as long
    first = first_step(order.case, launched, device, shards=order.shards)
    trainer = CaseTrainer(order.case, launched, shards=order.shards)
    driver.send((None, launched.rank))
    while (command := driver.recv()) is not None:
        name, arguments = command
        if name == "prove":
            driver.send((None, prove(trainer, first, split_steps=order.split_steps)))
        else:
            driver.send((None, trainer.time_steps(*arguments, warm_up=order.warm_up_steps)))
    leave_process_group()


if __name__ == "__main__":
    serve(SweepOrder, answer)
    end_process(0)
