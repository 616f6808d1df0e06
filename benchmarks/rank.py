"""One launched process of a case: build it, then do what the driver asks for.

Started by `accelerate launch` with a shipped launch file, like any run. Each process connects to
the driver and waits, blocked in a read, so that a group that is not being measured takes no
processor time. The driver going away ends it.
"""

import os
import shutil
import signal
import sys
from contextlib import suppress
from datetime import timedelta
from multiprocessing.connection import Client, Connection
from pathlib import Path
from typing import Any

import torch.distributed as dist
from pydantic import BaseModel

from benchmarks.proof import first_step, prove
from benchmarks.record import Case
from benchmarks.trainer import CaseTrainer
from toolkit.engines.launched import read_launch
from toolkit.engines.process_group import lift_time_limits, start_process_group
from toolkit.errors import ToolkitError
from toolkit.launch.ownership import follow
from toolkit.training.worker import end_process


class Order(BaseModel):
    """What a process is to do.

    Attributes:
        shards: prepared data, where the case trains on real data.
        warm_up_steps: before each repeat.
        split_steps: instrumented ones.
        timeout_s: of a collective.
        address: the driver's socket.
    """

    case: Case
    shards: list[str]
    warm_up_steps: int
    split_steps: int
    timeout_s: float
    address: str


def serve(order: Order, driver: Connection) -> None:
    """Do what the driver asks for until it asks for no more.

    An answer is a pair: what went wrong, in a sentence, or None; and the result.
    """
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
    if dist.is_initialized():
        # Left to the interpreter's end, gloo's threads now and then abort the process.
        dist.destroy_process_group()


def main(order_file: Path) -> None:
    """Serve the driver of an order file, and let it know of any failure in a sentence."""
    order = Order.model_validate_json(order_file.read_text())
    # What the launcher sends once the driver is gone.
    signal.signal(signal.SIGUSR1, _end_of_input)
    with Client(order.address, family="AF_UNIX") as driver:
        try:
            serve(order, driver)
        except (EOFError, BrokenPipeError):
            # The driver is gone, and nobody else is left to clear up after it.
            shutil.rmtree(order_file.parent, ignore_errors=True)
        except Exception as error:
            with suppress(OSError):
                driver.send((_sentence(error), None))
            raise


def _end_of_input(number: int, frame: Any) -> None:
    raise EOFError


def _sentence(error: Exception) -> str:
    said = (str(error).strip().splitlines() or ["no message"])[0]
    return said if isinstance(error, ToolkitError) else f"{type(error).__name__}: {said}"


if __name__ == "__main__":
    follow(signal.SIGKILL)
    main(Path(sys.argv[1]))
    end_process(0)
