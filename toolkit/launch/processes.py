"""One way to start a group of processes: watched, and over when the block is."""

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NamedTuple

from toolkit.counted import counted
from toolkit.engines.strategies import Strategy
from toolkit.errors import HangError, ToolkitError
from toolkit.launch.ownership import end, start, stopping_together
from toolkit.running_time import RunningTime
from toolkit.shipped import IS_INSTALLED, ROOT, find_launch_file

LAUNCHER = (sys.executable, "-m", "toolkit.launch.launcher")
"""Stands for `accelerate` in `accelerate launch ...`."""

END_S = 30.0
"""What processes get to end by themselves."""

_LOOK_EVERY_S = 0.2
_SHOWN = 4000


class ProcessError(ToolkitError):
    """Processes failed, or did not answer; the message ends with what they printed last."""


class Processes:
    """Processes that were started together, and the file with all that they print."""

    def __init__(self, log: Path) -> None:
        self.log = log
        self.started: list[subprocess.Popen[bytes]] = []

    @property
    def any_ended(self) -> bool:
        """Whether one of them is over."""
        return any(process.poll() is not None for process in self.started)

    def printed(self) -> str:
        """Return all that they have printed."""
        return self.log.read_text(errors="replace")

    def last_error(self) -> str:
        """Return the error that they reported last, or else their last line, once they are over."""
        self.join(END_S / 3)
        lines = [line for line in self.printed().splitlines() if line.strip()]
        errors = [line.partition("error: ")[2] for line in lines if line.startswith("error: ")]
        return (errors or lines or ["its processes ended without a message"])[-1].strip()

    def join(self, timeout_s: float) -> bool:
        """Wait until all are over or one has failed; return whether that came in time."""
        clock = RunningTime()
        while not any(process.poll() for process in self.started):
            running = [process for process in self.started if process.poll() is None]
            if not running or clock.read() >= timeout_s:
                return not running
            with suppress(subprocess.TimeoutExpired):
                running[0].wait(_LOOK_EVERY_S)
        return True

    def finish(self, name: str, *, timeout_s: float) -> str:
        """Wait until all are over; return what they printed.

        Raises:
            ProcessError: one failed.
            HangError: they did not finish in time.
        """
        if not self.join(timeout_s):
            raise HangError(f"{name} did not finish within {timeout_s:g} s")
        if any(process.returncode for process in self.started):
            raise ProcessError(f"{name} failed:\n{self.printed()[-_SHOWN:]}")
        return self.printed()

    def end(self) -> None:
        """Kill what is left of them."""
        for process in self.started:
            end(process)


@contextmanager
def processes(
    commands: Sequence[Sequence[str]],
    *,
    folder: Path,
    threads: int = 1,
    environment: Mapping[str, str] | None = None,
) -> Iterator[Processes]:
    """Start commands that stop and continue with this process and end with the block.

    After the block they have `END_S` seconds to end by themselves, where it raises none.

    Args:
        commands: one for each process.
        folder: for the file with what they print.
        threads: of each (OMP_NUM_THREADS).
        environment: variables on top of this process's own.
    """
    # An installed package is found without; in front, its neighbours would hide Python's own.
    search = [*([] if IS_INSTALLED else [str(ROOT)]), os.environ.get("PYTHONPATH", "")]
    variables = {
        **os.environ,
        # A person's own `accelerate config` must not leak into a proof or a benchmark.
        "HF_HOME": str(folder / "empty"),
        "OMP_NUM_THREADS": str(threads),
        "PYTHONPATH": os.pathsep.join(filter(None, search)),
        **(environment or {}),
    }
    group = Processes(folder / "log")
    with group.log.open("ab") as log, stopping_together():
        try:
            for command in commands:
                group.started.append(start(command, env=variables, stdout=log, stderr=log))
            yield group
            group.join(END_S)
        finally:
            group.end()


class Machine(NamedTuple):
    """One of several machines, and where they meet."""

    rank: int
    machines: int
    address: str
    port: int


def launch_words(
    strategy: str,
    world_size: int | None,
    script: Sequence[str],
    *,
    machine: Machine | None = None,
) -> list[str]:
    """Return the words after `accelerate`, or after `LAUNCHER`, that start a script.

    Args:
        strategy: the name of a shipped launch file, or a path.
        world_size: processes over all machines; None for as many as the launch file names.
        script: a file, or `--module` and a module, and its arguments.
        machine: which one this is, where there are several.
    """
    words = ["launch", "--config_file", str(find_launch_file(strategy))]
    if world_size is not None:
        words += ["--num_processes", str(world_size)]
    if machine is not None:
        words += ["--machine_rank", str(machine.rank), "--num_machines", str(machine.machines)]
        words += ["--main_process_ip", machine.address, "--main_process_port", str(machine.port)]
        if strategy.startswith("zero"):
            # DeepSpeed's own default logs into the other machines.
            words += ["--deepspeed_multinode_launcher", "standard"]
    return [*words, *script]


def launch(
    strategy: Strategy,
    world_size: int,
    script: Sequence[str],
    *,
    timeout_s: float,
    environment: Mapping[str, str] | None = None,
) -> str:
    """Run a script under `accelerate launch` with a shipped launch file; return what it printed.

    Raises:
        ProcessError: it failed.
        HangError: it did not finish in time; its processes have been ended.
    """
    command = [*LAUNCHER, *launch_words(strategy, world_size, script)]
    with (
        tempfile.TemporaryDirectory() as folder,
        processes([command], folder=Path(folder), environment=environment) as group,
    ):
        return group.finish(
            f"{strategy} on {counted(world_size, 'process', 'processes')}", timeout_s=timeout_s
        )
