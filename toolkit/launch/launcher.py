"""`accelerate launch`, without its own traceback when a worker has reported what is wrong.

It ends with the exit code of the worker that ended first, where one did, and otherwise as
`accelerate launch` does.
"""

import logging
import os
import signal
import socket
import subprocess
import sys
import time
from argparse import Namespace
from collections.abc import Callable, Sequence
from contextlib import suppress
from tempfile import TemporaryDirectory
from threading import Thread
from typing import Any

import psutil

from toolkit.errors import Preempted, UsageError
from toolkit.launch.exit_code import gathering_exit_codes
from toolkit.launch.ownership import (
    asking_signals,
    follow,
    kill,
    start,
    stopping_together,
    take_owner,
)

# What the launch scripts export as well: signals that are passed on to the workers, and how long
# they then have to save before they are killed.
ENVIRONMENT = {
    "PET_SIGNALS_TO_HANDLE": ",".join(number.name for number in asking_signals()),
    "TORCH_ELASTIC_SHUTDOWN_TIMEOUT": "120",
}

STOPPED = 128 + signal.SIGTERM
"""The launcher's code where a signal has ended it and the workers."""

_ALONE_S = 30.0


def run_launcher(command: Sequence[str]) -> int:
    """Run the launcher and return its code; must be called from the main thread.

    It gets a session of its own, so that a Ctrl-C at the terminal comes through here alone. The
    first signal is passed on, for the workers to save and end; the second ends them all at once.
    """
    process: subprocess.Popen[bytes] | None = None
    is_asked = False

    def pass_on(number: int, frame: Any) -> None:
        nonlocal is_asked
        if process is not None and is_asked:
            kill(process)
        elif process is not None and process.poll() is None:
            process.send_signal(signal.SIGTERM)
        is_asked = True

    # Before there is a process: one that a signal left behind would train on unseen.
    earlier = {number: signal.signal(number, pass_on) for number in asking_signals()}
    try:
        with stopping_together():
            process = start(command)
            if is_asked:
                process.send_signal(signal.SIGTERM)
            code = process.wait()
        if code == -signal.SIGTERM:
            # It had no handler yet, so it had started nothing.
            _report_nothing_started()
            return Preempted.exit_code
        return int(code)
    finally:
        for number, handler in earlier.items():
            signal.signal(number, handler)


def main() -> int:
    """Run `launch ...` as the `accelerate` program would; return the worker's exit code."""
    # Before the imports, which take seconds; torch's launcher, which serves all strategies but
    # `single`, sets its own later.
    for number in asking_signals():
        signal.signal(number, _pass_on_to_worker)
    owner = take_owner()
    with stopping_together(lambda: _end_without(owner)):
        if owner is not None:
            # Wakes this process where it and its workers are stopped, as by Ctrl-Z before.
            follow(signal.SIGCONT, owner=owner)
        return _launch()


def _end_without(owner: int | None) -> None:
    """Have the workers save and end where the owner has ended."""
    if owner is not None and os.getppid() != owner:
        signal.raise_signal(signal.SIGUSR1)


def _launch() -> int:
    # These set the levels of their logs.
    import torch.distributed.elastic.agent.server.api
    import torch.distributed.run  # its warning is of one thread a process, which is its default
    from accelerate.commands import launch

    from toolkit.engines.accelerate_internals import end_worker_by

    elastic = ("torch.distributed.elastic", "torch.distributed.elastic.agent.server.api")
    for name in (*elastic, "torch.distributed.run"):
        logging.getLogger(name).setLevel(logging.CRITICAL)
    # Else DeepSpeed warns that it found no accelerator; the run's header names the device.
    os.environ.setdefault("DS_ACCELERATOR", "cuda" if torch.cuda.is_available() else "cpu")
    os.environ |= {key: os.environ.get(key, value) for key, value in ENVIRONMENT.items()}
    try:
        _check_engine(sys.argv)
    except UsageError as error:
        sys.stderr.write(f"error: {error}\n")
        return error.exit_code
    arguments = launch.launch_command_parser().parse_args(sys.argv[2:])
    end_worker_by(_ask_to_end)
    if (arguments.num_machines or 1) > 1:
        Thread(target=_report_if_alone, args=(arguments,), daemon=True).start()
    with TemporaryDirectory(prefix="launch-") as folder, gathering_exit_codes() as worker_code:
        # Torch's launcher makes one otherwise, and leaves it.
        arguments.log_dir = arguments.log_dir or folder
        code = _run(launch.launch_command, arguments)
        return (worker_code() or code) if code else 0


def _run(launch_command: Callable[[Namespace], None], arguments: Namespace) -> int:
    from torch.distributed import DistNetworkError, DistStoreError
    from torch.distributed.elastic.multiprocessing.api import SignalException
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError

    try:
        launch_command(arguments)
    except (ConnectionError, DistStoreError, DistNetworkError) as error:
        sys.stderr.write(f"error: {str(error).splitlines()[0]} {_roll_call(arguments)}\n")
        return 1
    except ChildFailedError as error:
        rank, failure = error.get_first_failure()
        _report_if_killed(f"rank {rank}", failure.exitcode)
        return 1
    except subprocess.CalledProcessError as error:
        _report_if_killed("the process", error.returncode)
        return 1
    except (SignalException, KeyboardInterrupt):
        return STOPPED
    except SystemExit as end:
        # How Accelerate 1.16 ends after a signal.
        return int(end.code or 0)
    return 0


def _check_engine(command: Sequence[str]) -> None:
    """Refuse an engine that is not installed, which Accelerate does with a traceback.

    Raises:
        UsageError: it is not, or the launch file is wrong.
    """
    from toolkit.engines.launched import launch_file_of
    from toolkit.engines.strategies import check_installed
    from toolkit.launch.file import load_launch_file, strategy_of

    path = launch_file_of(command)
    if path is not None:
        check_installed(strategy_of(load_launch_file(path)))


def _report_if_alone(arguments: Namespace) -> None:
    """Explain what is otherwise ten silent minutes; PyTorch waits for all machines that long."""
    time.sleep(_ALONE_S)
    if not psutil.Process().children():
        sys.stderr.write(f"no process started in {_ALONE_S:g} s. {_roll_call(arguments)}\n")
        sys.stderr.flush()


def _roll_call(arguments: Namespace) -> str:
    """What has to be so before several launchers find each other."""
    rank, address = arguments.machine_rank or 0, arguments.main_process_ip
    misplaced = rank == 0 and address and not _is_own(address)
    return (
        f"This is machine {rank} of {arguments.num_machines}; every machine needs a launcher and a "
        f"rank of its own, from 0 at {address}:{arguments.main_process_port} upwards"
        + (f"; {address} is not this machine" if misplaced else "")
    )


def _is_own(address: str) -> bool:
    """Whether this machine has the address: only then can it be listened at."""
    try:
        with socket.create_server((address, 0)):
            return True
    except OSError:
        return False


def _pass_on_to_worker(number: int, frame: Any) -> None:
    workers = psutil.Process().children()
    if not workers:
        _report_nothing_started()
        # An exception that an import is left by may be swallowed there, or leave half a module.
        os._exit(Preempted.exit_code)
    for worker in workers:
        with suppress(psutil.NoSuchProcess):
            worker.send_signal(number)


def _ask_to_end(worker: Any) -> None:
    worker.terminate()
    try:
        worker.wait(float(os.environ["TORCH_ELASTIC_SHUTDOWN_TIMEOUT"]))
    except psutil.TimeoutExpired:
        worker.kill()
        worker.wait()


def _report_nothing_started() -> None:
    sys.stderr.write("error: stopped by a signal before anything was started; start it again\n")
    sys.stderr.flush()


def _report_if_killed(who: str, exit_code: int) -> None:
    """A killed worker cannot report anything itself; its exit code is minus the signal."""
    if exit_code < 0:
        name = signal.Signals(-exit_code).name
        sys.stderr.write(
            f"error: {who} was killed by {name}, from outside or for lack of host memory; "
            "start it again to resume\n"
        )


if __name__ == "__main__":
    sys.exit(main())
