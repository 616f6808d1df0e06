"""What the launcher reports in a worker's place, and when it is silent."""

import signal
import subprocess
import sys
import time
from argparse import Namespace
from typing import Any

import psutil
import pytest

from toolkit.engines import strategies
from toolkit.errors import Preempted
from toolkit.launch import launcher
from toolkit.launch.launcher import _report_if_alone, _report_if_killed, _roll_call
from toolkit.shipped import find_launch_file


def test_a_killed_worker_is_named_with_its_signal(capsys: pytest.CaptureFixture[str]) -> None:
    _report_if_killed("rank 1", -signal.SIGKILL)
    said = capsys.readouterr().err
    assert said.startswith("error: rank 1 was killed by SIGKILL")
    assert said.count("\n") == 1


def test_a_worker_that_reported_itself_is_left_at_that(capsys: pytest.CaptureFixture[str]) -> None:
    _report_if_killed("rank 1", 6)
    assert capsys.readouterr().err == ""


def machine(rank: int, address: str) -> Namespace:
    return Namespace(
        num_machines=2, machine_rank=rank, main_process_ip=address, main_process_port=29500
    )


def test_a_launcher_that_waits_for_others_reports_it(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(launcher, "_ALONE_S", 0.01)
    workers = [psutil.Process()]
    monkeypatch.setattr(psutil.Process, "children", lambda self: workers)
    _report_if_alone(machine(1, "10.0.0.1"))
    assert capsys.readouterr().err == ""
    workers.clear()
    _report_if_alone(machine(1, "10.0.0.1"))
    assert capsys.readouterr().err == (
        "no process started in 0.01 s. This is machine 1 of 2; every machine needs a launcher and "
        "a rank of its own, from 0 at 10.0.0.1:29500 upwards\n"
    )


def test_a_second_machine_0_is_shown_that_it_is_not_the_first() -> None:
    """192.0.2.0/24 is nobody's (RFC 5737)."""
    assert _roll_call(machine(0, "192.0.2.1")).endswith("; 192.0.2.1 is not this machine")
    assert "is not this machine" not in _roll_call(machine(0, "127.0.0.1"))


def test_a_signal_that_comes_before_the_process_is_passed_on(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    popen = subprocess.Popen

    def start_late(*arguments: Any, **options: Any) -> Any:
        signal.raise_signal(signal.SIGTERM)
        return popen(*arguments, **options)

    monkeypatch.setattr(subprocess, "Popen", start_late)
    assert launcher.run_launcher(["sleep", "60"]) == Preempted.exit_code
    said = "error: stopped by a signal before anything was started; start it again\n"
    assert capsys.readouterr().err == said


WHILE_IMPORTING = """
import signal
from toolkit.launch.launcher import _pass_on_to_worker
signal.signal(signal.SIGTERM, _pass_on_to_worker)
try:
    signal.raise_signal(signal.SIGTERM)
except BaseException:
    print("swallowed")
"""


def test_a_signal_ends_the_launcher_also_where_an_import_swallows_exceptions() -> None:
    ended = subprocess.run([sys.executable, "-c", WHILE_IMPORTING], stdout=subprocess.PIPE)
    assert (ended.returncode, ended.stdout) == (Preempted.exit_code, b"")


STUBBORN = """
import sys
from toolkit.launch.launcher import run_launcher
sys.exit(run_launcher(["bash", "-c", "trap '' TERM; echo ready; sleep 60 & wait; sleep 60"]))
"""


def test_a_second_signal_ends_workers_that_do_not_listen() -> None:
    with subprocess.Popen([sys.executable, "-c", STUBBORN], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"ready\n"
        process.terminate()
        time.sleep(0.2)
        assert process.poll() is None
        process.terminate()
        assert process.wait(timeout=10) != 0


def test_an_engine_that_is_not_installed_is_refused(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Accelerate itself ends in a traceback."""
    monkeypatch.setattr(signal, "signal", lambda number, handler: None)
    monkeypatch.setattr(strategies, "find_spec", lambda name: None)
    words = ["launch", "--config_file", str(find_launch_file("zero2")), "train.py"]
    monkeypatch.setattr(sys, "argv", ["launcher", *words])
    assert launcher.main() == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.endswith("not installed; pip install scaling-toolkit[deepspeed]")
