"""Signals to the launcher or to one rank: all stop at the same step, and nothing is lost."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.distributed.started import has_begun, left_over, run, start, toolkit_train, wait_until
from tests.distributed.test_runs import curve, folder, metrics, summary
from toolkit.engines.strategies import Strategy
from toolkit.launch.launcher import ENVIRONMENT
from toolkit.shipped import ROOT

__all__ = ["folder"]  # the fixture
pytestmark = [pytest.mark.distributed, pytest.mark.long]

ENDLESS = "training.steps=2000"


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


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGUSR1])
def test_a_signal_to_the_launcher_reaches_all_and_nothing_is_lost(
    folder: Path, number: signal.Signals
) -> None:
    """With the variables that the launch scripts export."""
    name, whole = f"launcher-{number}", f"launcher-{number}-whole"
    process = start(folder, "ddp", 2, name, ENDLESS, environment=ENVIRONMENT)
    wait_until(lambda: has_begun(folder, name), limit_s=60)
    process.send_signal(number)
    printed, _ = process.communicate(timeout=60)
    stopped = summary(folder, name)
    assert stopped["exit"] == 75, printed
    assert f"stopped by {number.name} after step {stopped['steps']}" in stopped["reason"]
    assert left_over(folder, name) == []
    further = f"training.stop_at={stopped['steps'] + 2}"
    assert run(folder, "ddp", 2, name, ENDLESS, further).code == 0
    assert run(folder, "ddp", 2, whole, ENDLESS, further).code == 0
    assert curve(folder, name) == curve(folder, whole)


@pytest.mark.parametrize(
    "number", [signal.SIGTERM, signal.SIGINT, signal.SIGQUIT, signal.SIGHUP, signal.SIGUSR2]
)
def test_toolkit_train_returns_75_after_one_line(folder: Path, number: signal.Signals) -> None:
    """To the whole foreground group, as Ctrl-C and Ctrl-\\ at a terminal do."""
    name = f"toolkit-{number}"
    with toolkit_train(folder, "fsdp2", 2, name, ENDLESS) as process:
        os.killpg(process.pid, number)
        _, complaint = process.communicate(timeout=60)
        assert process.returncode == summary(folder, name)["exit"] == 75
        assert "which is saved; start again to resume" in complaint
        assert "Traceback" not in complaint
        assert left_over(folder, name) == []


def test_a_launcher_that_is_killed_leaves_no_orphans(folder: Path) -> None:
    process = start(folder, "ddp", 2, "orphan", ENDLESS)
    wait_until(lambda: has_begun(folder, "orphan"), limit_s=60)
    process.kill()
    process.communicate(timeout=60)
    wait_until(lambda: not left_over(folder, "orphan"), limit_s=20)
    assert summary(folder, "orphan")["exit"] == 75


def test_a_reader_that_wants_one_line_gets_a_whole_run_and_no_complaint(folder: Path) -> None:
    toolkit = Path(sys.executable).with_name("toolkit")
    line = (
        f"{toolkit} train --strategy ddp --num-processes 2 --config {folder / 'run.yaml'} "
        "run_name=head | head -1"
    )
    result = subprocess.run(
        ["bash", "-o", "pipefail", "-c", line],
        env={**os.environ, "PYTHONPATH": str(ROOT), "HF_HOME": str(folder), "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert result.returncode == 0, result.stderr
    assert result.stdout.startswith("accelerate launch ")
    assert "Traceback" not in result.stderr
    assert "Broken pipe" not in result.stderr
    assert len([r for r in metrics(folder, "head") if r["kind"] == "train"]) == 6
