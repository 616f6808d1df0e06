"""From a run configuration to one machine's part in it, where machines come and go."""

import re
import socket
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from toolkit.config import RunConfig, load_run_config
from toolkit.engines.strategies import check_installed
from toolkit.errors import UsageError
from toolkit.launch.check import check_pair
from toolkit.launch.elastic import Elastic
from toolkit.launch.file import LaunchFile, load_launch_file, strategy_of
from toolkit.launch.membership import Membership, Round
from toolkit.launch.processes import LAUNCHER, Machine, launch_words
from toolkit.shipped import find_launch_file, find_main_job
from toolkit.training.batches import build_batches, build_val, plan_run
from toolkit.training.run_folder import make_run_folder

_RANGE = re.compile(r"(\d+)(?::(\d+))?")
_FIRST_PORT, _PORTS = 29500, 500
"""Each round meets at a port of its own: processes of the last one may not be gone yet."""


def read_machines(text: str) -> tuple[int, int]:
    """Return the least and the most machines that `1:4`, or `4` for both, allows.

    Raises:
        UsageError: it is no such range.
    """
    match = _RANGE.fullmatch(text)
    least, most = (int(match[1]), int(match[2] or match[1])) if match else (0, 0)
    if not 1 <= least <= most:
        raise UsageError(f"--machines {text}: the form is LEAST:MOST, as in 1:4")
    return least, most


def start_elastic(
    strategy: str,
    config_file: Path,
    overrides: Sequence[str],
    *,
    machines: str,
    per_machine: int,
    address: str | None = None,
    options: Sequence[str] = (),
) -> int:
    """Take part in a run on as many machines as there are; return its exit code.

    Every machine calls this. They find each other by the run's folder, which they share.

    Args:
        strategy: of the launch, or a launch file.
        config_file: the run configuration.
        overrides: of it.
        machines: the least and the most, as of `read_machines`.
        per_machine: processes on each.
        address: by which the other machines reach this one; by default that of its host name.
        options: of the main job, such as `--strict`.

    Raises:
        UsageError: the configuration, the launch file, the pair of them or the data is wrong for
            any number of machines, or this one has no address.
        UntrustedError: data shards are damaged.
    """
    least, most = read_machines(machines)
    job = _read_job(strategy, config_file, overrides, per_machine=per_machine, options=options)
    own_address = address or _address()
    job.check(most)
    folder = make_run_folder(job.config)
    return Elastic(
        Membership(folder / "machines", own_address),
        least=least,
        most=most,
        usable=job.usable,
        command=job.command,
        saved=lambda: max(map(str, (folder / "checkpoints").glob("step_*[0-9]")), default=None),
        recorded=lambda: _version_of(folder / "metrics.jsonl"),
        log=lambda line: print(line, flush=True),
    ).run()


@dataclass(frozen=True)
class _Job:
    """What is launched, on any number of machines.

    Attributes:
        config: the run's.
        launch_file: where `launch` was read.
        launch: the launch file's.
        per_machine: processes on each machine.
        script: of each process, and its words.
    """

    config: RunConfig
    launch_file: Path
    launch: LaunchFile
    per_machine: int
    script: Sequence[str]

    def check(self, most: int) -> None:
        """Check the run on as many of so many machines as can train together.

        Raises:
            UsageError: no number of them can, or the data is wrong.
            UntrustedError: data shards are damaged.
        """
        machines = self.usable(most)
        problem = self.problem_of(most)
        if machines == 0 and problem is not None:
            raise problem
        plan = plan_run(self.config, world_size=machines * self.per_machine)
        build_batches(self.config, plan, rank=0)
        build_val(self.config)

    def problem_of(self, machines: int) -> UsageError | None:
        """Return why so many machines cannot train together, None where they can."""
        try:
            check_pair(self.config, self.launch, world_size=machines * self.per_machine)
        except UsageError as error:
            return error
        return None

    def usable(self, machines: int) -> int:
        """Return how many of so many machines can train together."""
        return max((n for n in range(1, machines + 1) if self.problem_of(n) is None), default=0)

    def command(self, rank: int, current: Round) -> list[str]:
        """Return the launcher's command for one machine's rank in a round."""
        count, first = len(current.addresses), next(iter(current.addresses.values()))
        port = _FIRST_PORT + current.number % _PORTS
        machine = Machine(rank, count, first, port) if count > 1 else None
        processes = count * self.per_machine
        words = launch_words(str(self.launch_file), processes, self.script, machine=machine)
        return [*LAUNCHER, *words]


def _read_job(
    strategy: str,
    config_file: Path,
    overrides: Sequence[str],
    *,
    per_machine: int,
    options: Sequence[str],
) -> _Job:
    launch_file = find_launch_file(strategy)
    launch = load_launch_file(launch_file)
    check_installed(strategy_of(launch))
    config = load_run_config(config_file, overrides)
    script = [str(find_main_job()), *options, "--config", str(config_file), *overrides]
    return _Job(config, launch_file, launch, per_machine, script)


def _version_of(path: Path) -> object:
    """Return a value that changes as a file does."""
    try:
        found = path.stat()
    except FileNotFoundError:
        return None
    return found.st_size, found.st_mtime_ns


def _address() -> str:
    name = socket.gethostname()
    try:
        return socket.gethostbyname(name)
    except OSError:
        raise UsageError(
            f"the host name '{name}' has no address; name one with --address"
        ) from None
