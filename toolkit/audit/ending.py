"""The end of a watched process that was asked to stop, without a rank left waiting for it."""

import os
import sys
import time
from pathlib import Path

WAIT_S = 60.0
"""How long a process waits for the other ranks of this machine to reach the same point."""


def end_together(folder: Path) -> None:
    """End this process with exit code 0 once all ranks of this machine have come as far."""
    end = time.monotonic() + WAIT_S
    ranks = int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
    (folder / f"{os.getpid()}.stopped").touch()
    while len(list(folder.glob("*.stopped"))) < ranks and time.monotonic() < end:
        time.sleep(0.05)
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)
