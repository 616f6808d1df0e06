"""One of two ranks on one device, over gloo: NCCL refuses two ranks on one GPU."""

import os
import signal
import sys
from datetime import timedelta
from pathlib import Path

import torch

from toolkit.engines.launched import leave_to_the_run, read_launch
from toolkit.launch.exit_code import end_process
from toolkit.launch.ownership import follow
from toolkit.verify import worker


def main(work_file: Path) -> None:
    """Join over gloo before the toolkit would over NCCL, every rank on the first device."""
    launched = read_launch(os.environ)
    leave_to_the_run(os.environ, on_cpu=launched.on_cpu)
    os.environ["LOCAL_RANK"] = "0"
    if torch.cuda.is_available():
        torch.cuda.set_device(0)
    from accelerate import PartialState

    PartialState(backend="gloo", init_method="env://", timeout=timedelta(seconds=60))
    worker.main(work_file)


if __name__ == "__main__":
    follow(signal.SIGKILL)
    main(Path(sys.argv[1]))
    end_process(0)
