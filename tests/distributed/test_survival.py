"""Hangs, crashes, signals and bad numbers, with real processes under every kind of engine."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests import faulty
from tests.distributed.test_runs import curve, folder, metrics, summary
from toolkit.backends.strategies import Strategy
from toolkit.train import ROOT, find_launch_file

__all__ = ["folder"]  # the fixture
pytestmark = [pytest.mark.distributed, pytest.mark.long]

TIMEOUT_S = 8


class Ended:
    """How a launch ended: its printed lines, its code and the seconds it took."""

    def __init__(self, process: "subprocess.Popen[str]", started: float) -> None:
        try:
            self.printed, _ = process.communicate(timeout=110)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            raise
        self.code = process.returncode
        self.seconds = time.monotonic() - started


def start(
    folder: Path,
    strategy: Strategy,
    ranks: int,
    name: str,
    *overrides: str,
    fault: str = "",
    options: tuple[str, ...] = (),
    environment: dict[str, str] | None = None,
) -> "subprocess.Popen[str]":
    command = [str(Path(sys.executable).with_name("accelerate")), "launch", *options]
    command += ["--config_file", str(find_launch_file(strategy)), "--num_processes", str(ranks)]
    words = ["--config", str(folder / "run.yaml"), f"run_name={name}", *overrides]
    settings = {"FAULT": fault, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    return subprocess.Popen(
        [*command, faulty.__file__, *words],
        env={**os.environ, **settings, "HF_HOME": str(folder), **(environment or {})},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )


def run(*arguments: Any, **settings: Any) -> Ended:
    started = time.monotonic()
    return Ended(start(*arguments, **settings), started)


def left_over(folder: Path, name: str) -> list[psutil.Process]:
    words = {str(folder / "run.yaml"), f"run_name={name}"}
    return [p for p in psutil.process_iter(["cmdline"]) if words <= {*(p.info["cmdline"] or [])}]


@pytest.mark.parametrize(
    ("strategy", "action", "words"),
    [
        ("ddp", "hang", "rank 1 is behind"),
        ("fsdp2", "hang_in_c", "rank 1 does not answer"),
        ("ddp", "stop", "rank 1 does not answer"),
    ],
)
def test_a_hang_is_noticed_in_time_and_names_the_rank(
    folder: Path, strategy: Strategy, action: str, words: str
) -> None:
    name = f"hang-{action}"
    ended = run(
        folder, strategy, 2, name, f"training.timeout_s={TIMEOUT_S}", fault=f"step:1:3:{action}"
    )
    found = summary(folder, name)
    assert found["exit"] == 4, ended.printed
    assert f"no progress for {TIMEOUT_S} s in step 3: {words}" in found["reason"]
    assert "rank 0:\n" in ended.printed
    assert "rank 1:\n" in ended.printed
    assert left_over(folder, name) == []


@pytest.mark.parametrize("action", ["kill", "segfault", "exit7", "exit0"])
def test_a_crash_is_survived_with_max_restarts(folder: Path, action: str) -> None:
    name = f"restart-{action}"
    ended = run(
        folder,
        "fsdp2",
        2,
        name,
        "training.checkpoint_every=2",
        fault=f"step:1:4:{action}",
        options=("--max_restarts", "2"),
        environment={"FAULT_ONCE": str(folder / name)},
    )
    assert ended.code == 0, ended.printed
    assert "carrying on from" in ended.printed
    assert summary(folder, name)["steps"] == 6
    steps = [record["step"] for record in metrics(folder, name) if record["kind"] == "train"]
    assert steps == [1, 2, 3, 4, 5, 6]
    assert left_over(folder, name) == []


def test_out_of_memory_on_one_rank_ends_all_with_5(folder: Path) -> None:
    ended = run(folder, "zero2", 2, "oom", fault="step:1:3:oom")
    assert summary(folder, "oom")["exit"] == 5, ended.printed
    assert ended.printed.count("Traceback") <= 1
    assert left_over(folder, "oom") == []


@pytest.mark.parametrize("strategy", ["ddp", "fsdp2", "zero1", "zero2", "zero3"])
def test_a_nan_on_one_rank_is_skipped_by_all(folder: Path, strategy: Strategy) -> None:
    name = f"nan-{strategy}"
    ended = run(
        folder,
        strategy,
        2,
        name,
        "training.on_non_finite=skip",
        "training.checkpoint_every=1",
        "training.keep_last=9",
        fault="gradient:1:4:nan",
    )
    assert ended.code == 0, ended.printed
    checkpoints = folder / "runs" / name / "checkpoints"
    before, after = (
        [
            (checkpoints / f"step_{step:08d}" / f"rank_{r:05d}.safetensors").read_bytes()
            for r in (0, 1)
        ]
        for step in (3, 4)
    )
    assert before == after
    state = json.loads((checkpoints / "step_00000006" / "state.json").read_text())
    assert (state["step"], state["updates"]) == (6, 5)


@pytest.mark.parametrize(("strategy", "action"), [("zero3", "term"), ("fsdp2", "usr1")])
def test_a_signal_to_one_rank_stops_all_at_the_same_step_and_nothing_is_lost(
    folder: Path, strategy: Strategy, action: str
) -> None:
    name, whole = f"signal-{strategy}", f"whole-{strategy}"
    ended = run(folder, strategy, 2, name, fault=f"step:1:3:{action}")
    assert summary(folder, name)["exit"] == 75, ended.printed
    assert "Traceback" not in ended.printed.split("error:")[0]
    assert run(folder, strategy, 2, name).code == 0
    assert run(folder, strategy, 2, whole).code == 0
    assert curve(folder, name) == curve(folder, whole)


def test_a_launcher_that_is_killed_leaves_no_orphans(folder: Path) -> None:
    process = start(folder, "ddp", 2, "orphan", "training.steps=2000", fault="step:0:1000:kill")
    path = folder / "runs" / "orphan" / "metrics.jsonl"
    while not path.exists() or not path.read_text():
        time.sleep(0.2)
    process.kill()
    process.communicate(timeout=60)
    until = time.monotonic() + 20
    while left_over(folder, "orphan") and time.monotonic() < until:
        time.sleep(0.2)
    assert left_over(folder, "orphan") == []
    assert summary(folder, "orphan")["exit"] == 75


def test_a_flipped_bit_of_one_of_three_replicas_is_named(folder: Path) -> None:
    run(
        folder,
        "ddp",
        4,
        "flip",
        "training.check_replicas_every=1",
        fault="updated:2:3:flip",
    )
    found = summary(folder, "flip")
    assert found["exit"] == 3
    assert "rank 2 differs from the 3 others" in found["reason"]
