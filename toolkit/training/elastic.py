"""From a run configuration to one machine's part in it, where machines come and go."""

import re
import socket
from collections.abc import Sequence
from pathlib import Path

from toolkit.config import load_run_config
from toolkit.engines.strategies import check_installed
from toolkit.errors import UsageError
from toolkit.launch.check import check_pair
from toolkit.launch.elastic import Elastic
from toolkit.launch.file import load_launch_file, strategy_of
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
    launch_file = find_launch_file(strategy)
    launch = load_launch_file(launch_file)
    check_installed(strategy_of(launch))
    config = load_run_config(config_file, overrides)
    own_address = address or _address()

    def problem_of(count: int) -> UsageError | None:
        try:
            check_pair(config, launch, world_size=count * per_machine)
        except UsageError as error:
            return error
        return None

    def usable(count: int) -> int:
        return max((n for n in range(1, count + 1) if problem_of(n) is None), default=0)

    if usable(most) == 0:
        raise problem_of(most) or UsageError(f"--machines {machines}: no number of them can train")
    build_batches(config, plan_run(config, world_size=usable(most) * per_machine), rank=0)
    build_val(config)
    folder = make_run_folder(config)
    script = [str(find_main_job()), *options, "--config", str(config_file), *overrides]

    def command(rank: int, current: Round) -> list[str]:
        count, first = len(current.addresses), next(iter(current.addresses.values()))
        port = _FIRST_PORT + current.number % _PORTS
        machine = Machine(rank, count, first, port) if count > 1 else None
        words = launch_words(str(launch_file), count * per_machine, script, machine=machine)
        return [*LAUNCHER, *words]

    def recorded() -> object:
        try:
            found = (folder / "metrics.jsonl").stat()
        except FileNotFoundError:
            return None
        return found.st_size, found.st_mtime_ns

    return Elastic(
        Membership(folder / "machines", own_address),
        least=least,
        most=most,
        usable=usable,
        command=command,
        saved=lambda: max(map(str, (folder / "checkpoints").glob("step_*[0-9]")), default=None),
        recorded=recorded,
        log=lambda line: print(line, flush=True),
    ).run()


def _address() -> str:
    name = socket.gethostname()
    try:
        return socket.gethostbyname(name)
    except OSError:
        raise UsageError(
            f"the host name '{name}' has no address; name one with --address"
        ) from None
