"""Whoever owns a run takes it along: when stopped, when going on, and when killed."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from tests.distributed.started import left_over, toolkit_train, wait_until
from tests.distributed.test_preemption import ENDLESS
from tests.distributed.test_runs import curve, folder, metrics, summary, train
from toolkit.engines.strategies import Strategy
from toolkit.shipped import ROOT

__all__ = ["folder"]  # the fixture
pytestmark = pytest.mark.distributed

LIMIT_S = 2
"""Of time without progress; collectives have some seconds more."""


OWNER = """
import sys
from toolkit.launch.launcher import run_launcher
from toolkit.shipped import find_launch_file
from toolkit.training.start import launch_command
words = ["run_name={name}", "training.steps=2000"]
command = launch_command(
    find_launch_file("ddp"), "{folder}/run.yaml", words, num_processes=2
)
run_launcher([sys.executable, "-m", "toolkit.launch.launcher", *command[1:]])
"""


def steps(folder: Path, name: str) -> int:
    return max(record["step"] for record in metrics(folder, name))


def stop_all(process: psutil.Popen, folder: Path, name: str) -> None:
    """Ctrl-Z at the terminal of `toolkit train`."""
    os.killpg(process.pid, signal.SIGTSTP)
    # Itself, the launcher and two ranks.
    wait_until(lambda: [p.status() for p in left_over(folder, name)] == 4 * ["stopped"], limit_s=60)


@pytest.mark.long
def test_ctrl_z_stops_all_for_as_long_as_it_takes_and_fg_goes_on(folder: Path) -> None:
    """For longer than a hang and a collective may take; and the curve is as if nothing was."""
    name, whole = "paused", "whole"
    keys = ("training.steps=100", f"training.timeout_s={LIMIT_S}")
    with toolkit_train(folder, "ddp", 2, name, *keys) as process:
        stop_all(process, folder, name)
        before = steps(folder, name)
        time.sleep(LIMIT_S + 7)
        assert steps(folder, name) == before < 100
        os.killpg(process.pid, signal.SIGCONT)
        _, complaint = process.communicate(timeout=100)
    assert process.returncode == 0, complaint
    assert "error" not in complaint
    assert steps(folder, name) == 100
    train(folder, "ddp", 2, whole, *keys)
    assert curve(folder, name) == curve(folder, whole)


def test_an_owner_that_is_killed_while_all_are_stopped_takes_them_along(folder: Path) -> None:
    """Which many do to a program that does not listen: Ctrl-Z, and then `kill -9 %1`."""
    name = "killed-stopped"
    with toolkit_train(folder, "fsdp2", 2, name, ENDLESS) as process:
        stop_all(process, folder, name)
        process.kill()
        process.wait()
        wait_until(lambda: not left_over(folder, name), limit_s=60)
    assert summary(folder, name)["exit"] == 75


@pytest.mark.long
@pytest.mark.parametrize(
    ("strategy", "number"),
    [
        ("ddp", signal.SIGKILL),
        ("zero2", signal.SIGKILL),
        ("single", signal.SIGKILL),
        ("ddp", signal.SIGABRT),
        ("single", signal.SIGTRAP),
    ],
)
def test_an_owner_that_is_killed_takes_launcher_and_ranks_along(
    folder: Path, strategy: Strategy, number: signal.Signals
) -> None:
    name = f"killed-{strategy}-{number.name}"
    ranks = 1 if strategy == "single" else 2
    with toolkit_train(folder, strategy, ranks, name, ENDLESS) as process:
        process.send_signal(number)
        assert process.wait(timeout=20) == -number
        wait_until(lambda: not left_over(folder, name), limit_s=60)
    found = summary(folder, name)
    assert found["exit"] == 75
    assert found["steps"] == steps(folder, name)


@pytest.mark.long
def test_verify_owns_its_processes_as_well(folder: Path) -> None:
    """They stop and go on with it, and are gone with it."""
    program = str(Path(sys.executable).with_name("toolkit"))
    words = ["verify", "--strategies", "ddp", "--world-sizes", "2", "--steps", "50"]
    with subprocess.Popen(
        [program, *words],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    ) as process:
        owner = psutil.Process(process.pid)
        # The launcher and two ranks.
        wait_until(lambda: len(owner.children(recursive=True)) >= 3, limit_s=60)
        below = owner.children(recursive=True)
        owner.send_signal(signal.SIGTSTP)
        wait_until(lambda: {p.status() for p in (owner, *below)} == {"stopped"}, limit_s=60)
        owner.send_signal(signal.SIGCONT)
        wait_until(lambda: "stopped" not in {p.status() for p in (owner, *below)}, limit_s=60)
        owner.kill()
    wait_until(lambda: not any(p.is_running() for p in below), limit_s=60)


@pytest.mark.long
@pytest.mark.parametrize("after_s", [0.0, 0.1, 0.5, 2.0, 4.0])
def test_an_owner_that_is_killed_at_the_start_takes_them_along(
    folder: Path, after_s: float
) -> None:
    """At any moment from the launcher's first to the ranks' last before training."""
    script = OWNER.format(folder=folder, name=(name := f"killed-after-{after_s}"))
    with subprocess.Popen([sys.executable, "-c", script]) as process:
        wait_until(lambda: len(left_over(folder, name)) > 0, limit_s=60)
        time.sleep(after_s)
        process.kill()
    wait_until(lambda: not left_over(folder, name), limit_s=60)
