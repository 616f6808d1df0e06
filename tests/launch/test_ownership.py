"""Processes that end with their owner, by signals and by the fall-back for other systems."""

import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from tests.distributed.started import wait_until
from toolkit import running_time
from toolkit.launch.launcher import ENVIRONMENT
from toolkit.launch.ownership import asking_signals
from toolkit.running_time import RunningTime
from toolkit.shipped import ROOT

PLATFORMS = ["linux", "darwin"]
FOLLOWER = """
import signal, sys, time
from toolkit.launch.ownership import follow
sys.platform = {platform!r}
follow(signal.SIGTERM{more})
print("follows", flush=True)
time.sleep(60)
"""
OWNER = """
import subprocess, sys
from toolkit.launch.ownership import start
process = start([sys.executable, "-c", {follower!r}], stdout=subprocess.PIPE)
assert process.stdout.readline() == b"follows\\n"
print(process.pid, flush=True)
process.wait()
"""


@pytest.mark.skipif(sys.platform != "linux", reason="a signal of Linux")
@pytest.mark.parametrize("platform", PLATFORMS)
def test_what_is_started_ends_with_its_owner(platform: str) -> None:
    follower = FOLLOWER.format(platform=platform, more="")
    command = [sys.executable, "-c", OWNER.format(follower=follower)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as owner:
        assert owner.stdout is not None
        started = psutil.Process(int(owner.stdout.readline()))
        assert started.is_running()
        owner.kill()
    wait_until(lambda: not is_alive(started), limit_s=10)


def is_alive(process: psutil.Process) -> bool:
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


@pytest.mark.parametrize("platform", PLATFORMS)
def test_an_owner_that_has_ended_before_is_noticed(platform: str) -> None:
    with subprocess.Popen(["true"]) as ended:
        pass
    follower = FOLLOWER.format(platform=platform, more=f", owner={ended.pid}")
    done = subprocess.run([sys.executable, "-c", follower], timeout=30, check=False)
    assert done.returncode == -signal.SIGTERM


def test_nohup_keeps_sighup_away() -> None:
    assert signal.SIGHUP in asking_signals()
    earlier = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        assert signal.SIGHUP not in asking_signals()
    finally:
        signal.signal(signal.SIGHUP, earlier)


@pytest.mark.parametrize("script", ["one_node.sh"])
def test_launch_scripts_pass_on_what_the_launcher_does(script: str) -> None:
    text = (ROOT / "launch" / script).read_text()
    (line,) = [line for line in text.splitlines() if "PET_SIGNALS_TO_HANDLE=" in line]
    assert set(line.split("=")[1].split(",")) == {*ENVIRONMENT["PET_SIGNALS_TO_HANDLE"].split(",")}


def test_time_does_not_run_while_a_process_is_stopped(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 100.0
    monkeypatch.setattr(running_time.time, "monotonic", lambda: now)
    time = RunningTime()
    for passed in (0.5, 3600.0, 0.25):
        now += passed
        found = time.read()
    assert found == 1.75


SLOW_TO_SAVE = """
import signal, sys, time
asked = []
signal.signal(signal.SIGTERM, lambda number, frame: asked.append(number))
print("ready", flush=True)
while not asked:
    time.sleep(0.1)
time.sleep(6)
print("saved", flush=True)
"""


@pytest.mark.long
def test_one_process_alone_has_as_long_to_save_as_others(tmp_path: Path) -> None:
    """Accelerate 1.15 kills it after 5 s."""
    script = tmp_path / "slow.py"
    script.write_text(SLOW_TO_SAVE)
    launch_file = str(ROOT / "configs" / "accelerate" / "single.yaml")
    command = [
        sys.executable,
        "-m",
        "toolkit.launch.launcher",
        "launch",
        "--config_file",
        launch_file,
    ]
    with subprocess.Popen([*command, str(script)], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        process.terminate()
        assert process.stdout.read() == "saved\n"
