"""A run that is killed at any point of saving ends as one that was never interrupted."""

import random
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.checkpoint.job import KILLED, STEPS, Job, assert_ends_as
from toolkit.checkpoint.store import find_damage


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


def test_resuming_after_every_single_step_is_exact(job: Job, straight: str) -> None:
    """Each sequence once per epoch, and the same epochs, however often the run is cut."""
    for stop in range(1, STEPS + 1):
        keys = ("training.checkpoint_every=1", f"training.stop_at={stop}")
        assert job.start("every", *keys) == 0, job.log("every")
    assert job.curve("every") == job.curve(straight)
    assert job.end_state("every") == job.end_state(straight)


@pytest.mark.parametrize("asynchronous", ["false", pytest.param("true", marks=pytest.mark.long)])
def test_a_disk_that_is_full_ends_the_run_or_not_as_configured(
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


def test_a_damaged_checkpoint_is_skipped_unless_strict_and_never_the_last(
    job: Job, straight: str
) -> None:
    assert job.start("damaged", "training.stop_at=4") == 0
    older, newer = job.store("damaged").committed()
    flip_the_last_bit(newer / "rank_00000.safetensors")
    assert job.start("damaged", "--strict") == 3
    assert "skipped only without --strict" in job.log("damaged")
    flip_the_last_bit(older / "rank_00000.safetensors")
    assert job.start("damaged") == 3
    assert "no checkpoint here can be resumed from" in job.log("damaged")
    assert job.curve("damaged") == job.curve(straight)[:4]
    flip_the_last_bit(older / "rank_00000.safetensors")
    assert job.start("damaged") == 0, job.log("damaged")
    assert_ends_as(job, "damaged", straight)


def flip_the_last_bit(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)


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
