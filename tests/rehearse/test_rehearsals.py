"""`toolkit rehearse` with real processes in namespaces: every fault, and nothing left after it."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from tempfile import gettempdir

import psutil
import pytest

from tests.distributed.started import wait_until
from toolkit.launch.links import links_unavailable
from toolkit.rehearse import rehearsal
from toolkit.rehearse.differences import Difference
from toolkit.rehearse.faults import ENDINGS, read_fault
from toolkit.rehearse.machines import Plan
from toolkit.rehearse.rehearsal import rehearse

ROOT = Path(__file__).parents[2]
NO_LINKS = links_unavailable()

pytestmark = [
    pytest.mark.long,
    pytest.mark.distributed,
    pytest.mark.timeout(600),
    pytest.mark.skipif(NO_LINKS is not None, reason=str(NO_LINKS)),
]


def namespaces() -> str:
    return subprocess.check_output(["ip", "netns", "list"], text=True)


def traces() -> set[str]:
    """Return what a rehearsal could leave: namespaces, temporary files, processes."""
    names = namespaces().split()
    # What machines leave among temporary files is in folders of the rehearsal's own.
    files = [name for name in os.listdir(gettempdir()) if name.startswith("rehearse-")]
    words = [" ".join(p.info["cmdline"] or ()) for p in psutil.process_iter(["cmdline"])]
    return {
        *(name for name in names if name.startswith(f"scaling-{os.getpid()}-")),
        *files,
        *(line for line in words if "rehearse-" in line or "rehearsed" in line),
    }


def plan_of(run_file: Path, *, strategy: str = "ddp", steps: int = 600, save: int = 5) -> Plan:
    return Plan(
        machines=2,
        per_machine=1,
        rate_mbit_per_s=1000.0,
        strategy=strategy,
        config=run_file,
        overrides=(f"training.stop_at={steps}", f"training.checkpoint_every={save}"),
    )


@pytest.mark.parametrize("name", ENDINGS)
def test_what_must_come_of_a_fault_comes_of_it_and_nothing_is_left(
    run_file: Path, name: str
) -> None:
    before = traces()
    is_timed = name in ("link-down", "kill-machine", "slow-link")
    printed: list[str] = []
    plan = plan_of(run_file, steps=300 if is_timed else 10)
    assert rehearse(plan, read_fault(name), printed.append) == []
    assert traces() == before
    if name in ("link-down", "kill-machine"):
        assert "repeated bit for bit" in printed[-1]


@pytest.mark.parametrize("strategy", ["fsdp2", "zero2"])
def test_a_link_that_goes_down_under_other_engines(run_file: Path, strategy: str) -> None:
    plan = plan_of(run_file, strategy=strategy, steps=150)
    assert rehearse(plan, read_fault("link-down@1s"), print) == []


def test_a_difference_that_is_not_noticed_is_reported(
    run_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rehearsal, "difference", lambda *_: Difference())
    problems = rehearse(plan_of(run_file, steps=5), read_fault("other-config"), print)
    assert problems[0].startswith("machine0 ended with 0")
    assert "the run trained before it was refused" in problems


def test_a_hang_that_is_not_noticed_in_time_is_reported(
    run_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rehearsal, "AFTER_TIMEOUT_S", -6.0)
    problems = rehearse(plan_of(run_file), read_fault("link-down@1s"), print)
    assert problems == ["machine0, machine1 had not ended 2 s after the fault"]


def test_a_next_start_that_is_not_exact_is_reported(
    run_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The last step's loss is not what was recorded of it."""
    next_start = rehearsal._Rehearsal._next_start

    def after_a_change(self: rehearsal._Rehearsal) -> list[str]:
        *steps, last = self.metrics.read_text().splitlines()
        record = {**json.loads(last), "loss": 1.0}
        self.metrics.write_text("\n".join([*steps, json.dumps(record)]) + "\n")
        return next_start(self)

    monkeypatch.setattr(rehearsal._Rehearsal, "_next_start", after_a_change)
    (problem,) = rehearse(plan_of(run_file, steps=150, save=50), read_fault("link-down@1s"), print)
    assert "is another than before the fault" in problem


def test_the_command_ends_with_0_only_if_all_came_as_it_must(run_file: Path) -> None:
    words = [sys.executable, "-m", "toolkit", "rehearse", "--per-machine", "2", "--steps", "5"]
    words += ["--config", str(run_file), "--strategy", "fsdp2", "--link", "100Mbit"]
    faults = ["--fault", "none", "--fault", "link-down@60s"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    ended = subprocess.run(
        [*words, *faults], env=environment, capture_output=True, text=True, check=False
    )
    assert ended.returncode == 1
    assert "outcome    none: as it must be" in ended.stdout
    assert "wrong      the run was over before link-down@60s" in ended.stdout
    assert "Traceback" not in ended.stderr


@pytest.mark.parametrize(
    ("number", "code"),
    [(signal.SIGTERM, 128 + signal.SIGTERM), (signal.SIGKILL, -signal.SIGKILL)],
)
def test_a_rehearsal_that_is_ended_leaves_nothing(
    run_file: Path, number: signal.Signals, code: int
) -> None:
    before = traces()
    words = [sys.executable, "-m", "toolkit", "rehearse", "--per-machine", "1"]
    process = subprocess.Popen(
        [*words, "--steps", "1000", "--config", str(run_file)],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    wait_until(lambda: len([p for p in traces() if "launch/train.py" in p]) > 2, limit_s=120)
    process.send_signal(number)
    assert process.wait(timeout=60) == code
    wait_until(lambda: traces() == before, limit_s=20)
    prefix = f"scaling-{process.pid}-"
    wait_until(
        lambda: prefix not in subprocess.check_output(["ip", "netns"], text=True), limit_s=10
    )
