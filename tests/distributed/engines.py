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

from tests.distributed.abandoned import abandoned_windows
from tests.distributed.exchanged import exchanged
from tests.distributed.half import half_precision
from tests.distributed.moved import moved_attributes
from tests.distributed.other_model import other_models
from tests.distributed.resumed import resumed
from tests.distributed.window_sums import window_sums
from toolkit.engines.become import become
from toolkit.engines.launched import Launched
from toolkit.engines.process_group import leave_process_group
from toolkit.engines.strategies import Strategy
from toolkit.launch.exit_code import end_process

RANK = int(os.environ.get("RANK", "0"))
PARTS: tuple[Callable[[Launched], Iterator[dict[str, Any]]], ...] = (
    other_models,
    abandoned_windows,
    half_precision,
    moved_attributes,
    window_sums,
    exchanged,
    resumed,
)


def findings(strategy: Strategy) -> Iterator[dict[str, Any]]:
    """Yield what each part finds under a strategy, with the names of both."""
    launched = become(strategy, timeout=timedelta(seconds=60))
    for part in PARTS:
        for finding in part(launched):
            yield {"part": part.__name__, "strategy": strategy, **finding}


def main(strategies: list[str]) -> None:
    for strategy in strategies:
        for finding in findings(cast(Strategy, strategy)):
            if RANK == 0:
                print("FOUND " + json.dumps(finding), flush=True)
    leave_process_group()


if __name__ == "__main__":
    main(sys.argv[1:])
    end_process(0)
