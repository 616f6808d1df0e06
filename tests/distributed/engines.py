"""One engine after another in the same processes: findings, as JSON lines of rank 0.

Run under `accelerate launch` with the names of strategies. Each is made as its own launch file
would make it: the environment that `accelerate launch` sets, then a new start of Accelerate.
"""

import json
import os
import sys
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any, cast

import torch.distributed as dist

from tests.distributed.abandoned import abandoned_windows
from tests.distributed.half import half_precision
from tests.distributed.moved import moved_attributes
from tests.distributed.other_model import other_models
from tests.distributed.window_sums import window_sums
from toolkit.engines.accelerate_internals import forget_engine
from toolkit.engines.launched import Launched
from toolkit.engines.process_group import start_process_group
from toolkit.engines.strategies import FSDP2_STRATEGIES, Strategy, replicas_of
from toolkit.training.worker import end_process

RANK = int(os.environ.get("RANK", "0"))
WORLD_SIZE = int(os.environ.get("WORLD_SIZE", "1"))
PARTS: tuple[Callable[[Launched], Iterator[dict[str, Any]]], ...] = (
    other_models,
    abandoned_windows,
    half_precision,
    moved_attributes,
    window_sums,
)


def become(strategy: Strategy) -> Launched:
    """Start Accelerate anew in this process, for another strategy."""
    from accelerate import PartialState

    os.environ["ACCELERATE_USE_DEEPSPEED"] = str(strategy.startswith("zero")).lower()
    os.environ["ACCELERATE_USE_FSDP"] = str(strategy in FSDP2_STRATEGIES).lower()
    os.environ["FSDP_VERSION"] = "2"
    PartialState._reset_state()
    forget_engine()
    launched = Launched(strategy, RANK, RANK, WORLD_SIZE, replicas_of(strategy), None)
    start_process_group(launched, timeout=timedelta(seconds=60))
    return launched


def findings(strategy: Strategy) -> Iterator[dict[str, Any]]:
    """Yield what each part finds under a strategy, with the names of both."""
    launched = become(strategy)
    for part in PARTS:
        for finding in part(launched):
            yield {"part": part.__name__, "strategy": strategy, **finding}


def main(strategies: list[str]) -> None:
    for strategy in strategies:
        for finding in findings(cast(Strategy, strategy)):
            if RANK == 0:
                print("FOUND " + json.dumps(finding), flush=True)
    if dist.is_initialized():
        # Left to the interpreter's end, gloo's threads now and then abort the process.
        dist.destroy_process_group()


if __name__ == "__main__":
    main(sys.argv[1:])
    end_process(0)
