"""From a strategy and a run configuration to a launched job and its exit code."""

import shlex
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path

from toolkit.config import load_run_config
from toolkit.engines.strategies import check_installed
from toolkit.errors import Preempted, UsageError
from toolkit.launch.check import check_pair
from toolkit.launch.file import load_launch_file, strategy_of
from toolkit.launch.launcher import STOPPED, run_launcher
from toolkit.launch.processes import LAUNCHER, launch_words
from toolkit.shipped import find_launch_file, find_main_job
from toolkit.training.batches import build_batches, build_val
from toolkit.training.run_folder import (
    forget_last_start,
    make_run_folder,
    read_last_start,
    sole_user,
)


def start(
    strategy: str,
    config_file: Path,
    overrides: Sequence[str],
    *,
    num_processes: int | None,
    options: Sequence[str] = (),
) -> int:
    """Check everything that can be checked beforehand, then launch and wait.

    Args:
        strategy: of the launch, or a launch file.
        config_file: the run configuration.
        overrides: of it.
        num_processes: to start; those of the launch file if None.
        options: of the main job, such as `--strict`.

    Returns:
        The exit code of the worker, from `last_start.json`; 1 if it left none and failed.

    Raises:
        UsageError: the configuration, the launch file, the pair of them or the data is wrong, the
            engine or a tracker is not installed, or the run folder cannot be made.
        UntrustedError: data shards are damaged.
        Preempted: a signal ended the workers before they could write how they ended.
    """
    launch_file = find_launch_file(strategy)
    launch = load_launch_file(launch_file)
    check_installed(strategy_of(launch))
    config = load_run_config(config_file, overrides)
    plan = check_pair(config, launch, world_size=num_processes)
    build_batches(config, plan, rank=0)
    build_val(config)
    _check_trackers(config.training.trackers)
    command = launch_command(
        launch_file, config_file, overrides, num_processes=num_processes, options=options
    )
    folder = make_run_folder(config)
    with sole_user(folder):
        if "--quiet" not in options:
            print(shlex.join(command), flush=True)
        forget_last_start(folder)
    status = run_launcher([*LAUNCHER, *command[1:]])
    ended = read_last_start(folder) if status else None
    if ended is None and status == STOPPED:
        raise Preempted("stopped by a signal before this start could save anything; start it again")
    return int(ended["exit"]) or status if ended else status


def _check_trackers(trackers: Sequence[str]) -> None:
    """Refuse a tracker whose module is not there; the worker then asks Accelerate, which is slow.

    Raises:
        UsageError: names the tracker.
    """
    for tracker in trackers:
        # Accelerate 1.15 takes either of two for this one; the others are called as their module.
        modules = ("tensorboard", "tensorboardX") if tracker == "tensorboard" else (tracker,)
        if not any(map(find_spec, modules)):
            raise UsageError(
                f"training.trackers: '{tracker}' is not installed; pip install it or take it out"
            )


def launch_command(
    launch_file: Path,
    config_file: Path,
    overrides: Sequence[str],
    *,
    num_processes: int | None,
    options: Sequence[str] = (),
) -> list[str]:
    """Return the words of the `accelerate launch` line."""
    script = [str(find_main_job()), *options, "--config", str(config_file), *overrides]
    return ["accelerate", *launch_words(str(launch_file), num_processes, script)]
