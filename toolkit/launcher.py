"""`accelerate launch`, without the launcher's own traceback when a worker has said what is wrong.

The worker's exit code stands in the run's summary; the launcher's is 1 for any of them.
"""

import logging
import subprocess
import sys


def main() -> int:
    """Run `launch ...` as the `accelerate` program would; return 1 where a worker failed."""
    from accelerate.commands.launch import launch_command, launch_command_parser
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError

    logging.getLogger("torch.distributed.elastic").setLevel(logging.CRITICAL)
    try:
        launch_command(launch_command_parser().parse_args(sys.argv[2:]))
    except (ChildFailedError, subprocess.CalledProcessError):
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
