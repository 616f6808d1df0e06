"""A run that is asked to end, hangs, or meets another ends as it should, and resumes."""

import json
import os
import time
from threading import Thread

import pytest

from tests.checkpoint.job import KILLED, STEPS, Job
from tests.samples import sample
from toolkit.training.run_folder import sole_user


@pytest.mark.sample
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
