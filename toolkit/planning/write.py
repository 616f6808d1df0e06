"""A plan as two files that start as they are: a launch file and a run configuration."""

import re
from collections.abc import Iterator
from pathlib import Path

from toolkit.config import RunConfig, dump_run_config, load_run_config
from toolkit.errors import UsageError
from toolkit.launch.check import check_pair
from toolkit.launch.file import load_launch_file
from toolkit.planning.answer import PlanRow
from toolkit.shipped import find_launch_file

LAUNCH_FILE, RUN_FILE = "launch.yaml", "run.yaml"
_PORT = 29_500
"""Several machines need one that all know."""
_ADDRESS = "# Where machine 0 is; --main_process_ip wins.\nmain_process_ip: machine-0"


def overrides_of(row: PlanRow) -> list[str]:
    """Return what a configuration changes in a run."""
    step = row.settings
    return [
        f"accumulation={step.accumulation}",
        f"batch.tokens_per_step={row.tokens_per_step}",
        f"batch.micro_batch_size={step.micro_batch_size}",
        f"model.activation_checkpointing={str(step.activation_checkpointing).lower()}",
        f"model.loss={step.loss}",
    ]


def write_plan(row: PlanRow, run: RunConfig, folder: Path) -> list[Path]:
    """Write the launch file and the run configuration, and check the pair.

    Raises:
        UsageError: the folder cannot be written.
    """
    paths = [folder / LAUNCH_FILE, folder / RUN_FILE]
    try:
        folder.mkdir(parents=True, exist_ok=True)
        # What `model.preset` stands for is spelled out in the dump, so that overrides go on top.
        paths[1].write_text(dump_run_config(run))
        planned = load_run_config(paths[1], overrides_of(row))
        paths[1].write_text(dump_run_config(planned))
        paths[0].write_text(_launch_text(row))
    except OSError as error:
        raise UsageError(f"--write {folder}: {error.strerror}") from None
    check_pair(planned, load_launch_file(paths[0]))
    return paths


def start_lines(row: PlanRow, folder: Path) -> Iterator[str]:
    """Yield how the plan is started: one line, or one for each machine."""
    cluster = row.cluster
    if cluster.is_one_machine:
        yield f"toolkit train --plan {folder}"
        return
    yield (
        f"on machine RANK of {cluster.gpus // cluster.per_machine}, from 0: accelerate launch "
        f"--config_file {folder / LAUNCH_FILE} --machine_rank RANK --main_process_ip MACHINE_0 "
        f"launch/train.py --config {folder / RUN_FILE}"
    )


def plan_files(folder: Path) -> tuple[str, Path]:
    """Return the launch file and the run configuration of a written plan.

    Raises:
        UsageError: one of them is not there.
    """
    for name in (LAUNCH_FILE, RUN_FILE):
        if not (folder / name).is_file():
            raise UsageError(f"--plan {folder}: has no {name}; `toolkit plan --write` makes it")
    return str(folder / LAUNCH_FILE), folder / RUN_FILE


def _launch_text(row: PlanRow) -> str:
    """Return the strategy's shipped launch file with the plan's processes, machines and groups."""
    text = find_launch_file(row.settings.strategy).read_text()
    cluster = row.cluster
    values: dict[str, object] = {"num_processes": cluster.gpus}
    if not cluster.is_one_machine:
        values["num_machines"] = cluster.gpus // cluster.per_machine
        values["main_process_port"] = f"{_PORT}\n{_ADDRESS}"
    if row.settings.replicas > 1:
        values["parallelism_config_dp_replicate_size"] = row.settings.replicas
    for key, value in values.items():
        text = re.sub(rf"(?m)^( *{key}:).*$", rf"\1 {value}", text)
    return text
