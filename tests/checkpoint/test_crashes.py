"""A run that is killed at any point of saving ends as one that was never interrupted."""

import json
import os
import random
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from threading import Thread
from typing import Any

import pytest
import yaml

from tests.data.shard_files import write_llmc
from tests.samples import sample
from toolkit.checkpoint.store import CheckpointStore, find_damage
from toolkit.training.run_folder import sole_user

ROOT = Path(__file__).parents[2]
STEPS = 6
KILLED = -9


class Job:
    """Starts of one run on real files, each in a process of its own."""

    def __init__(self, folder: Path, server: "subprocess.Popen[str]") -> None:
        self.folder = folder
        self.server = server

    def start(
        self, name: str, *overrides: str, fault: str = "", kill_after_s: float | None = None
    ) -> int:
        assert self.server.stdin is not None
        assert self.server.stdout is not None
        order = {
            "arguments": [
                "--config",
                str(self.folder / "run.yaml"),
                f"run_name={name}",
                *overrides,
            ],
            "environment": {"FAULT": fault},
            "log": str(self.folder / f"{name}.log"),
            "kill_after_s": kill_after_s,
        }
        self.server.stdin.write(json.dumps(order) + "\n")
        self.server.stdin.flush()
        code: int = json.loads(self.server.stdout.readline())
        return code

    def run(self, name: str) -> Path:
        return self.folder / "runs" / name

    def store(self, name: str) -> CheckpointStore:
        return CheckpointStore(self.run(name) / "checkpoints")

    def steps(self, name: str) -> list[int]:
        return [int(path.name.removeprefix("step_")) for path in self.store(name).committed()]

    def log(self, name: str) -> str:
        return (self.folder / f"{name}.log").read_text()

    def curve(self, name: str) -> list[tuple[Any, ...]]:
        lines = (self.run(name) / "metrics.jsonl").read_text().splitlines()
        records = [json.loads(line) for line in lines]
        return [(r["step"], r["loss"], r["grad_norm"], r["tokens"]) for r in records]

    def records(self, name: str) -> list[tuple[str, int, Any]]:
        lines = (self.run(name) / "metrics.jsonl").read_text().splitlines()
        records = [json.loads(line) for line in lines]
        return [(r["kind"], r["step"], r.get("loss", r.get("text"))) for r in records]

    def end_state(self, name: str) -> bytes:
        newest = self.store(name).committed()[-1]
        assert list(find_damage(newest)) == []
        return (newest / "rank_00000.safetensors").read_bytes()


@pytest.fixture(scope="module")
def job(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Job]:
    folder = tmp_path_factory.mktemp("crashes")
    # 640 tokens are 19 sequences: 6 steps of 4 go through them more than once.
    write_llmc(
        folder / "train" / "shard_000000.bin", [(7 * i * i + 3 * i) % 500 for i in range(640)]
    )
    run = {
        "model": {"n_layer": 1, "n_head": 2, "n_embd": 16, "block_size": 32, "vocab_size": 512},
        "data": {"train": str(folder / "train")},
        "batch": {"tokens_per_step": 128, "micro_batch_size": 2},
        "output_dir": str(folder / "runs"),
        "optimizer": {"lr": 1e-3, "warmup_steps": 2},
        "training": {"steps": STEPS, "checkpoint_every": 2, "keep_last": 2},
    }
    run["model"]["dropout"] = 0.1  # type: ignore[index]
    (folder / "run.yaml").write_text(yaml.safe_dump(run))
    command = [sys.executable, "-m", "tests.checkpoint.forks"]
    settings = {"OMP_NUM_THREADS": "1", "DS_ACCELERATOR": "cpu", "PYTHONPATH": str(ROOT)}
    environment = {**os.environ, **settings}
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment, cwd=ROOT
    ) as server:
        yield Job(folder, server)
        assert server.stdin is not None
        server.stdin.close()


@pytest.fixture(scope="module")
def straight(job: Job) -> str:
    assert job.start("straight") == 0, job.log("straight")
    assert job.steps("straight") == [4, 6]
    return "straight"


def assert_ends_as(job: Job, name: str, straight: str) -> None:
    assert job.curve(name) == job.curve(straight)
    assert job.end_state(name) == job.end_state(straight)
    left = {path.name for path in job.store(name).folder.iterdir()}
    # What the very last pruning left is cleared away by the next saving.
    assert left - {"step_00000002.deleted"} == {"step_00000004", "step_00000006"}


@pytest.mark.parametrize(
    ("fault", "committed", "asynchronous"),
    [
        ("begin:0:4:kill", [2], False),
        ("half:0:4:kill", [2], False),
        ("half:0:4:kill", [2], True),
        ("part:0:4:kill", [2], False),
        ("part:0:4:kill", [2], True),
        ("commit:0:4:kill", [2], False),
        ("manifest:0:4:kill", [2], False),
        ("rename:0:4:kill", [2], True),
        ("committed:0:4:kill", [2, 4], False),
        # The third commit deletes the first; half-deleted, it is no checkpoint any more.
        ("prune:0:2:kill", [4, 6], False),
    ],
)
def test_a_kill_while_saving_loses_no_commit(
    job: Job, straight: str, fault: str, committed: list[int], asynchronous: bool
) -> None:
    name = f"{fault.split(':')[0]}-{asynchronous}"
    keys = [f"training.async_save={asynchronous}".lower()]
    assert job.start(name, *keys, fault=fault) == KILLED
    assert job.steps(name) == committed
    assert job.start(name, *keys) == 0, job.log(name)
    assert f"step_{committed[-1]:08d} after {committed[-1]} steps" in job.log(name)
    assert_ends_as(job, name, straight)


def test_carrying_on_after_every_single_step_is_exact(job: Job, straight: str) -> None:
    """Each sequence once per epoch, and the same epochs, however often the run is cut."""
    for stop in range(1, STEPS + 1):
        keys = ("training.checkpoint_every=1", f"training.stop_at={stop}")
        assert job.start("every", *keys) == 0, job.log("every")
    assert job.curve("every") == job.curve(straight)
    assert job.end_state("every") == job.end_state(straight)


def test_a_signal_ends_with_75_and_the_next_start_is_exact(job: Job, straight: str) -> None:
    """In the first step, in an evaluation, while saving, and between two micro-steps."""
    for fault in ("step:0:1:usr1", "evaluate:0:1:term", "half:0:4:int", "backward:0:3:term"):
        point = fault.split(":")[0]
        name = f"signal-{point}"
        evaluates = ["training.eval_every=1", f"data.val={job.folder}/train"]
        keys = evaluates if point == "evaluate" else []
        assert job.start(name, *keys, fault=fault) == 75, job.log(name)
        summary = json.loads((job.run(name) / "summary.json").read_text())
        assert summary["exit"] == 75
        assert "Traceback" not in job.log(name)
        assert job.log(name).count("error:") == 1
        if point == "step":
            shown = "toolkit train --strategy fsdp2 --num-processes 2 --config run.yaml"
            log = job.log(name).replace(str(job.run(name)), "runs/demo2")
            sample(shown).assert_is_like(log)
        assert job.start(name) == 0, job.log(name)
        assert job.end_state(name) == job.end_state(straight)


EVALUATES = ("training.eval_every=2", "training.sample_tokens=3")


@pytest.fixture(scope="module")
def evaluated(job: Job) -> str:
    assert job.start("evaluated", *EVALUATES, f"data.val={job.folder}/train") == 0
    return "evaluated"


@pytest.mark.parametrize(
    ("fault", "code", "left"),
    [
        ("evaluate:0:4:kill", KILLED, ["train"]),
        ("evaluate:0:4:term", 75, ["train"]),
        # Found out between two tokens, and in the last step.
        ("sample:0:6:term", 75, ["train", "eval"]),
    ],
)
def test_an_evaluation_that_is_cut_short_costs_no_step_and_is_done_again(
    job: Job, evaluated: str, fault: str, code: int, left: list[str]
) -> None:
    point, _, step, action = fault.split(":")
    name = f"short-{point}-{action}"
    keys = (*EVALUATES, f"data.val={job.folder}/train")
    assert job.start(name, *keys, fault=fault) == code, job.log(name)
    assert job.steps(name)[-1] == int(step)
    assert [kind for kind, at, _ in job.records(name) if at == int(step)] == left
    assert job.start(name, *keys) == 0, job.log(name)
    assert job.records(name) == job.records(evaluated)
    assert job.end_state(name) == job.end_state(evaluated)
    said = job.log(name).count("nothing to do")
    assert job.start(name, *keys) == 0
    assert job.log(name).count("nothing to do") == said + 1


def test_a_second_signal_ends_at_once(job: Job) -> None:
    """Before the step is done, and so before anything is saved."""
    fault = "step:0:3:term,backward:0:3:slow,updated:0:3:term"
    assert job.start("twice", "training.checkpoint_every=1", fault=fault) == 128 + 15
    assert job.steps("twice") == [1, 2]


def test_a_hang_ends_with_4_and_the_place(job: Job) -> None:
    """Within a second and a half of the time set, which is for the other ranks' reports."""
    started = time.monotonic()
    assert job.start("hang", "training.timeout_s=1", fault="step:0:3:hang") == 4
    assert time.monotonic() - started < 5
    summary = json.loads((job.run("hang") / "summary.json").read_text())
    assert summary["exit"] == 4
    assert summary["reason"].startswith("no progress for 1 s in step 3: rank 0 is behind (in ")
    assert "tests/faulty.py" in summary["reason"]
    assert "in faulty_main" in job.log("hang")


@pytest.mark.parametrize("asynchronous", ["false", pytest.param("true", marks=pytest.mark.long)])
def test_a_disk_that_is_full_ends_the_run_or_not_as_it_says(
    job: Job, straight: str, asynchronous: str
) -> None:
    """From step 4 on the system lets no file grow beyond 10,000 bytes; a part has 144,000."""
    name, fault = f"full-{asynchronous}", "begin:0:4:file_limit"
    keys = [f"training.async_save={asynchronous}"]
    assert job.start(name, *keys, "training.on_save_error=warn", fault=fault) == 0, job.log(name)
    assert job.log(name).count("cannot be written: File too large; the run goes on") == 2
    assert job.curve(name) == job.curve(straight)
    assert job.steps(name) == [2]
    again = f"{name}-again"
    assert job.start(again, *keys, fault=fault) == 3
    assert "Traceback" not in job.log(again)
    assert job.start(again, *keys) == 0, job.log(again)
    assert_ends_as(job, again, straight)


def test_a_disk_without_room_for_a_line_ends_the_run_with_3(job: Job, straight: str) -> None:
    """Neither the metrics nor the console nor the summary can be written any more."""
    assert job.start("no-space", fault="step:0:4:no_space") == 3
    assert job.steps("no-space") == [2]
    assert job.start("no-space") == 0, job.log("no-space")
    assert_ends_as(job, "no-space", straight)


def test_a_damaged_checkpoint_is_passed_over_unless_strict_and_never_the_last(
    job: Job, straight: str
) -> None:
    assert job.start("damaged", "training.stop_at=4") == 0
    older, newer = job.store("damaged").committed()
    flip_the_last_bit(newer / "rank_00000.safetensors")
    assert job.start("damaged", "--strict") == 3
    assert "skipped only without --strict" in job.log("damaged")
    flip_the_last_bit(older / "rank_00000.safetensors")
    assert job.start("damaged") == 3
    assert "no checkpoint here can be carried on from" in job.log("damaged")
    assert job.curve("damaged") == job.curve(straight)[:4]
    flip_the_last_bit(older / "rank_00000.safetensors")
    assert job.start("damaged") == 0, job.log("damaged")
    assert_ends_as(job, "damaged", straight)


def flip_the_last_bit(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)


def test_two_runs_do_not_share_a_folder(job: Job) -> None:
    job.run("shared").mkdir(parents=True)
    with sole_user(job.run("shared")):
        assert job.start("shared", "training.stop_at=1") == 2
    assert "another process is at work there" in job.log("shared")
    assert job.start("shared", "training.stop_at=1", fault="step:0:1:kill") == KILLED
    assert job.start("shared", "training.stop_at=1") == 0


def test_whoever_closes_the_output_does_not_end_the_run(job: Job) -> None:
    """As `| head -1` does."""
    pipe = job.folder / "closed.log"
    os.mkfifo(pipe)
    first_line: list[str] = []

    def read_one_line() -> None:
        with pipe.open() as reader:
            first_line.append(reader.readline())

    reader = Thread(target=read_one_line)
    reader.start()
    assert job.start("closed") == 0
    reader.join()
    assert first_line[0].startswith("run ")
    assert len(job.curve("closed")) == STEPS


@pytest.mark.parametrize(
    "path", ["checkpoints", "checkpoints/step_00000002", "checkpoints/step_00000002/state.json"]
)
def test_nothing_of_a_run_leads_out_of_it(job: Job, path: str) -> None:
    """What a link points to may be anyone's; it is refused or replaced, never written through."""
    name = f"link-{path.count('/')}"
    assert job.start(name, "training.stop_at=2") == 0
    elsewhere = job.folder / f"{name}-elsewhere"
    linked = job.run(name) / path
    linked.rename(elsewhere)
    linked.symlink_to(elsewhere)
    assert job.start(name) == 3
    assert "Traceback" not in job.log(name)


@pytest.fixture(scope="module")
def run_s(job: Job) -> float:
    """How long a run that saves at every step takes on this machine now."""
    started = time.perf_counter()
    assert job.start("timed", "training.checkpoint_every=1") == 0
    return time.perf_counter() - started


@pytest.fixture(scope="module")
def kills(request: pytest.FixtureRequest) -> Iterator[list[float]]:
    """The seconds after which runs were killed, told at the end."""
    survived: list[float] = []
    yield survived
    capture = request.config.pluginmanager.getplugin("capturemanager")
    with capture.global_and_fixture_disabled():
        print(f"\n{len(survived)} kills survived")


@pytest.mark.long
@pytest.mark.parametrize("seed", range(20))
def test_kills_at_random_moments(
    job: Job, straight: str, seed: int, run_s: float, kills: list[float]
) -> None:
    """Three kills a run, at moments from before the first step to the last."""
    draw = random.Random(seed)
    name = f"random-{seed}"
    keys = ["training.checkpoint_every=1", f"training.async_save={seed % 2 == 1}".lower()]
    killed = []
    for _ in range(3):
        kill_after_s = draw.uniform(0.05, 0.85) * run_s
        if job.start(name, *keys, kill_after_s=kill_after_s) == KILLED:
            killed.append(kill_after_s)
        if committed := job.store(name).committed():
            assert list(find_damage(committed[-1])) == []
    assert job.start(name, *keys) == 0, job.log(name)
    assert job.curve(name) == job.curve(straight)
    assert job.end_state(name) == job.end_state(straight)
    kills += killed
