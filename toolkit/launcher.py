"""`accelerate launch`, without the launcher's own traceback when a worker has said what is wrong.

The worker's exit code stands in the run's summary; the launcher's is 1 for any of them.
"""

import logging
import signal
import subprocess
import sys


def main() -> int:
    """Run `launch ...` as the `accelerate` program would; return 1 where a worker failed."""
    from accelerate.commands.launch import launch_command, launch_command_parser
    from torch.distributed.elastic.multiprocessing.api import SignalException
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError

    logging.getLogger("torch.distributed.elastic").setLevel(logging.CRITICAL)
    try:
        launch_command(launch_command_parser().parse_args(sys.argv[2:]))
    except ChildFailedError as error:
        rank, failure = error.get_first_failure()
        _say_if_killed(f"rank {rank}", failure.exitcode)
        return 1
    except subprocess.CalledProcessError as error:
        _say_if_killed("the process", error.returncode)
        return 1
    except (SignalException, KeyboardInterrupt):
        sys.stderr.write("error: stopped by a signal; start it again to carry on\n")
        return 1
    return 0


def _say_if_killed(who: str, exit_code: int) -> None:
    """A killed worker cannot say anything itself; its exit code is minus the signal."""
    if exit_code < 0:
        name = signal.Signals(-exit_code).name
        sys.stderr.write(
            f"error: {who} was killed by {name}, from outside or for want of host memory; "
            "start it again to carry on\n"
        )


if __name__ == "__main__":
    sys.exit(main())
