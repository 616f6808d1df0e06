"""Machines that come and go, each in a namespace: the curve stays that of one process."""

import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import numpy as np
import pytest
import yaml

from tests.data.shard_files import write_llmc
from tests.rehearse import recorded_job, recorded_toolkit
from tests.rehearse.test_rehearsals import NO_LINKS, ROOT, traces
from tests.rehearse.trained import Trained, trained
from toolkit.checkpoint.copies import folder_of
from toolkit.launch.links import Link, linked
from toolkit.launch.processes import Processes, processes
from toolkit.rehearse.machines import NAMED
from toolkit.training.metrics import read_metrics

TOOLKIT = (sys.executable, recorded_toolkit.__file__)
STEPS = 160
SEQ_LEN = 32
PER_STEP = 24
PATIENCE_S = 240.0
ROUND_S = 60.0
"""Until the others begin another round: 10 to notice that one is lost, 3 for more to come, and the
rest for a busy machine."""

pytestmark = [
    pytest.mark.long,
    pytest.mark.distributed,
    pytest.mark.timeout(900),
    pytest.mark.skipif(NO_LINKS is not None, reason=str(NO_LINKS)),
]


@pytest.fixture(scope="module")
def elastic_file(run_file: Path) -> Path:
    """24 sequences a step, which 1, 2, 3 and 4 ranks can share; some seven steps a second.

    No two sequences are the same, so that what a rank was given says which they were.
    """
    run = yaml.safe_load(run_file.read_text())
    words = np.random.default_rng(0).integers(512, size=5000)
    write_llmc(run_file.with_name("elastic") / "shard_000000.bin", words)
    run["data"]["train"] = str(run_file.with_name("elastic"))
    run["batch"]["tokens_per_step"] = PER_STEP * SEQ_LEN
    run["optimizer"]["lr"] = 3e-4
    run["training"] = {"steps": STEPS, "checkpoint_every": 5, "timeout_s": 60}
    path = run_file.with_name("elastic.yaml")
    path.write_text(yaml.safe_dump(run))
    return path


class Run:
    """One run, and the machines that are in it."""

    def __init__(self, link: Link, stack: ExitStack, folder: Path, *words: str) -> None:
        self.link, self.stack, self.folder = link, stack, folder
        self.words = [*words, f"output_dir={folder}", "run_name=run"]
        self.groups: dict[int, Processes] = {}

    def come(self, machine: int, *, machines: str = "1:4") -> None:
        """Start a machine, anew where it has gone."""
        words = [*NAMED, f"machine{machine}"]
        words += [*TOOLKIT, "train", "--machines", machines]
        words += ["--address", f"10.77.0.{machine + 1}", *self.words]
        place = self.folder / f"machine{machine}-{time.time_ns()}"
        (place / "tmp").mkdir(parents=True)
        environment = {
            "GLOO_SOCKET_IFNAME": self.link.interface,
            "TMPDIR": str(place / "tmp"),
            recorded_job.FOLDER: str(batches_folder(self.folder)),
        }
        group = processes(
            [self.link.command(machine, words)], folder=place, environment=environment
        )
        self.groups[machine] = self.stack.enter_context(group)

    def await_that(self, condition: Callable[[], bool]) -> None:
        until = time.monotonic() + PATIENCE_S
        while not condition():
            assert time.monotonic() < until, self.groups[0].printed()[-3000:]
            time.sleep(0.1)

    def await_step(self, step: int) -> None:
        self.await_that(lambda: max(self.curve(), default=0) >= step)

    def await_round(self, machines: int) -> None:
        """Wait until so many machines train in the newest round."""
        self.await_that(lambda: self.newest_round()[1] == machines)

    def await_more_steps(self) -> None:
        """Wait until the newest round has done a step."""
        begun = f"round {self.newest_round()[0]}: "
        self.await_that(lambda: any("\nstep " in p.partition(begun)[2] for p in self.printed()))

    def newest_round(self) -> tuple[int, int]:
        """Return its number and the machines that train in it."""
        found = re.findall(r"round (\d+): (\d+) train", "".join(self.printed()))
        return max(((int(number), int(count)) for number, count in found), default=(0, 0))

    def printed(self) -> list[str]:
        return [group.printed() for group in self.groups.values()]

    def curve(self) -> dict[int, tuple[float, ...]]:
        found = read_metrics(self.folder / "run" / "metrics.jsonl")
        return {r["step"]: (r["loss"], r["grad_norm"], r["lr"], r["tokens"]) for r in found}

    def codes(self) -> dict[int, int]:
        """Wait for all machines that have not been killed; return how they ended."""
        self.await_that(lambda: all(group.any_ended for group in self.groups.values()))
        return {machine: group.started[0].wait() for machine, group in self.groups.items()}


@contextmanager
def running(folder: Path, *words: str) -> Iterator[Run]:
    with linked(1000.0, machines=4) as link, ExitStack() as stack:
        run = Run(link, stack, folder, *words)
        yield run
        for group in run.groups.values():
            group.end()


def words_of(elastic_file: Path, strategy: str) -> list[str]:
    return ["--strategy", strategy, "--config", str(elastic_file)]


def batches_folder(folder: Path) -> Path:
    found = folder / "batches"
    found.mkdir(exist_ok=True)
    return found


@pytest.fixture(scope="module")
def alone(elastic_file: Path, tmp_path_factory: pytest.TempPathFactory) -> Trained:
    """The run of one process, which takes every sequence once per epoch."""
    folder = tmp_path_factory.mktemp("alone")
    words = [*words_of(elastic_file, "single"), f"output_dir={folder}", "run_name=run"]
    environment = {
        **os.environ,
        "PYTHONPATH": str(ROOT),
        recorded_job.FOLDER: str(batches_folder(folder)),
    }
    subprocess.run([*TOOLKIT, "train", *words], env=environment, check=True)
    return trained(folder, elastic_file)


@pytest.mark.parametrize("strategy", ["ddp", "fsdp2", "zero1", "zero2", "zero3"])
def test_four_three_two_and_four_machines_are_one_run(
    elastic_file: Path, tmp_path: Path, alone: Trained, strategy: str
) -> None:
    """The third goes by a kill, the second asked to, and both come back."""
    before = traces()
    with running(tmp_path, *words_of(elastic_file, strategy)) as run:
        for machine in range(4):
            run.come(machine)
        run.await_round(4)
        run.await_step(8)
        lost = time.monotonic()
        run.link.kill(3)
        run.await_round(3)
        assert time.monotonic() - lost < ROUND_S
        run.await_more_steps()
        print(f"{strategy}: a step again {time.monotonic() - lost:.0f} s after the kill")
        run.groups[2].started[0].send_signal(signal.SIGTERM)
        run.await_round(2)
        run.await_more_steps()
        assert run.groups[2].started[0].wait() == 75
        for machine in (2, 3):
            run.come(machine)
        run.await_round(4)
        assert max(run.curve()) < STEPS
        assert set(run.codes().values()) == {0}
        assert not (run.folder / "run" / "machines").exists()
    assert_same_run(trained(tmp_path, elastic_file), alone)
    assert traces() == before


def assert_same_run(found: Trained, alone: Trained) -> None:
    """The curve of one process, every step from the same sequences, each of them once per epoch."""
    assert [record["step"] for record in found.steps] == list(range(1, STEPS + 1))
    for record, expected in zip(found.steps, alone.steps, strict=True):
        for key in ("loss", "lr", "tokens"):
            assert record[key] == pytest.approx(expected[key], rel=1e-5), (key, record["step"])
    assert found.batches == alone.batches
    assert all(ids == alone.batches[step - 1] for step, ids in found.repeated)
    taken = [number for batch in found.batches for number in batch]
    count = max(taken) + 1
    epochs = [taken[first : first + count] for first in range(0, len(taken) - count + 1, count)]
    assert len(epochs) > 1
    assert all(sorted(epoch) == list(range(count)) for epoch in epochs)


def test_a_lost_machine_costs_no_more_than_the_steps_since_the_last_copy(
    elastic_file: Path, tmp_path: Path, alone: Trained
) -> None:
    """Nothing is on the disk, and its memory is lost as well."""
    keys = ("training.checkpoint_every=0", "training.peer_copy_every=5")
    with running(tmp_path, *words_of(elastic_file, "fsdp2"), *keys) as run:
        for machine in range(3):
            run.come(machine)
        run.await_round(3)
        run.await_step(12)
        copies = folder_of((run.folder / "run" / ".copies").read_text())
        run.link.kill(1)
        shutil.rmtree(copies / "machine1-0")
        run.await_round(2)
        run.await_more_steps()
        (saved,) = re.findall(r"saved step (\d+) from the copies", "".join(run.printed()))
        assert int(saved) >= 10
        del run.groups[1]
        assert set(run.codes().values()) == {0}
        assert not copies.exists()
        print(*re.findall("peer copy .*", "".join(run.printed())))
    assert_same_run(trained(tmp_path, elastic_file), alone)


def test_a_batch_that_three_machines_cannot_share_is_trained_on_by_two(
    elastic_file: Path, tmp_path: Path
) -> None:
    words = (*words_of(elastic_file, "ddp"), "batch.tokens_per_step=256", "training.stop_at=20")
    with running(tmp_path, *words) as run:
        for machine in range(3):
            run.come(machine, machines="3")
        assert run.codes() == {0: 0, 1: 0, 2: 0}
        assert all("machines   round 1: 2 train, 1 wait" in printed for printed in run.printed())
        assert ["2 x cpu" in printed for printed in run.printed()].count(True) == 1


def test_what_fails_for_good_ends_all_machines(elastic_file: Path, tmp_path: Path) -> None:
    words = (*words_of(elastic_file, "ddp"), "optimizer.lr=1.0e+3", "optimizer.grad_clip=0")
    with running(tmp_path, *words) as run:
        for machine in range(2):
            run.come(machine, machines="2")
        assert run.codes() == {0: 6, 1: 6}
