"""One engine after another in the same processes: starting them takes longer than what they do."""

import os
from datetime import timedelta

from toolkit.engines.accelerate_internals import forget_engine
from toolkit.engines.launched import Launched
from toolkit.engines.process_group import start_process_group
from toolkit.engines.strategies import FSDP2_STRATEGIES, Strategy, replicas_of


def become(strategy: Strategy, *, timeout: timedelta) -> Launched:
    """Start Accelerate anew in this process, as the launch file of another strategy would make it.

    The processes stay the group that they were launched as.

    Raises:
        UsageError, HangError: as `start_process_group`.
    """
    os.environ["ACCELERATE_USE_DEEPSPEED"] = str(strategy.startswith("zero")).lower()
    os.environ["ACCELERATE_USE_FSDP"] = str(strategy in FSDP2_STRATEGIES).lower()
    os.environ["FSDP_VERSION"] = "2"
    forget_engine(with_processes=True)
    rank, world_size = (int(os.environ.get(key, d)) for key, d in (("RANK", 0), ("WORLD_SIZE", 1)))
    launched = Launched(strategy, rank, rank, world_size, replicas_of(strategy), None)
    start_process_group(launched, timeout=timeout)
    return launched
