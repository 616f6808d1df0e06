"""Rounds of one machine and of several, with shells in the place of launchers."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from itertools import count
from pathlib import Path
from threading import Timer

import psutil
import pytest

from tests.launch import elastic_machine
from toolkit.launch import elastic, membership
from toolkit.launch.elastic import MOST_VAIN, Elastic
from toolkit.launch.membership import Membership, Round
from toolkit.launch.ownership import end
from toolkit.shipped import ROOT


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(membership, "BEAT_S", 0.02)
    monkeypatch.setattr(elastic, "_LOOK_EVERY_S", 0.02)


class Machine:
    """One machine of a run of one, whose launchers end with the codes of a script each."""

    def __init__(self, folder: Path, *scripts: str, saved: Callable[[], object]) -> None:
        self.members = Membership(folder / "machines", "127.0.0.1")
        self.scripts = scripts
        self.starts: list[int] = []
        self.saved = saved

    def command(self, rank: int, current: Round) -> Sequence[str]:
        self.starts.append(current.number)
        return ["sh", "-c", self.scripts[min(len(self.starts), len(self.scripts)) - 1]]

    def run(self) -> int:
        return Elastic(
            self.members,
            least=1,
            most=1,
            usable=lambda machines: machines,
            command=self.command,
            saved=self.saved,
            recorded=lambda: None,
            log=print,
        ).run()


@pytest.mark.parametrize(
    ("scripts", "code", "rounds"),
    [
        (["exit 0"], 0, 1),
        (["exit 2"], 2, 1),
        (["exit 6"], 6, 1),
        (["exit 75", "exit 4", "exit 1", "kill -9 $$", "exit 0"], 0, 5),
    ],
)
def test_a_run_ends_with_what_would_come_again(
    tmp_path: Path, scripts: list[str], code: int, rounds: int
) -> None:
    saved = count()
    machine = Machine(tmp_path, *scripts, saved=lambda: next(saved))
    assert machine.run() == code
    assert machine.starts == list(range(1, rounds + 1))
    assert list(tmp_path.iterdir()) == []


def test_a_run_that_fails_without_a_new_checkpoint_is_given_up(tmp_path: Path) -> None:
    machine = Machine(tmp_path, "exit 4", saved=lambda: "step_00000005")
    assert machine.run() == 4
    assert len(machine.starts) == 1 + MOST_VAIN


def test_a_machine_that_is_asked_to_leave_has_its_workers_save(tmp_path: Path) -> None:
    script = "trap 'exit 75' TERM; while :; do sleep 0.05; done"
    machine = Machine(tmp_path, script, saved=lambda: None)
    Timer(0.5, os.kill, (os.getpid(), signal.SIGTERM)).start()
    assert machine.run() == 75
    assert machine.starts == [1]


def test_a_second_signal_does_not_wait_for_them(tmp_path: Path) -> None:
    machine = Machine(tmp_path, "trap '' TERM; while :; do sleep 0.05; done", saved=lambda: None)
    for after_s in (0.5, 0.7):
        Timer(after_s, os.kill, (os.getpid(), signal.SIGTERM)).start()
    assert machine.run() == 75


class Machines:
    """Machines of one run, each a process with a log of its own."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.all: list[tuple[subprocess.Popen[bytes], Path]] = []

    def come(self) -> int:
        """Start one; return its number."""
        log = self.folder / f"{len(self.all)}.log"
        words = [sys.executable, elastic_machine.__file__, str(self.folder)]
        environment = {**os.environ, "PYTHONPATH": str(ROOT)}
        with log.open("w") as out:
            self.all.append((subprocess.Popen(words, env=environment, stdout=out), log))
        return len(self.all) - 1

    def await_line(self, machine: int, line: str) -> None:
        until = time.monotonic() + 30
        while line not in (printed := self.all[machine][1].read_text()):
            assert time.monotonic() < until, printed
            time.sleep(0.05)

    def lose(self, machine: int) -> None:
        process, _ = self.all[machine]
        below = psutil.Process(process.pid).children(recursive=True)
        for each in (process, *below):
            each.kill()
        process.wait()

    def codes(self) -> list[int]:
        return [process.wait(timeout=30) for process, _ in self.all]


@pytest.fixture
def machines(tmp_path: Path) -> Iterator[Machines]:
    found = Machines(tmp_path)
    yield found
    for process, _ in found.all:
        end(process)


def test_machines_that_come_are_in_the_next_round_and_lost_ones_are_not(
    machines: Machines,
) -> None:
    first = machines.come()
    machines.await_line(first, "trains round 1 rank 0 of 1")
    second = machines.come()
    machines.await_line(second, "trains round 2 rank 1 of 2")
    machines.await_line(first, "trains round 2 rank 0 of 2")
    third = machines.come()
    machines.lose(second)
    machines.await_line(third, "trains round 3 rank 1 of 2")
    machines.lose(first)
    machines.await_line(third, "trains round 4 rank 0 of 1")
    (machines.folder / "done").touch()
    assert machines.codes()[third] == 0
    assert not (machines.folder / "machines").exists()


def test_a_machine_too_many_waits_and_ends_with_the_run(machines: Machines) -> None:
    for _ in range(3):
        machines.come()
    for machine in range(3):
        machines.await_line(machine, ": 2 train, 1 wait")
    (machines.folder / "done").touch()
    assert machines.codes() == [0, 0, 0]
    assert not (machines.folder / "machines").exists()
