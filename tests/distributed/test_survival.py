"""Hangs, crashes and bad numbers, with real processes under every kind of engine."""

import json
from pathlib import Path

import pytest

from tests.distributed.started import left_over, run
from tests.distributed.test_runs import curve, folder, metrics, summary
from toolkit.engines.strategies import Strategy

__all__ = ["folder"]  # the fixture
pytestmark = [pytest.mark.distributed, pytest.mark.long]

TIMEOUT_S = 8


@pytest.fixture(scope="module")
def whole(folder: Path) -> str:
    """Six steps under FSDP2 that nothing happened to."""
    assert run(folder, "fsdp2", 2, "whole").code == 0
    return "whole"


@pytest.mark.parametrize(
    ("strategy", "action", "words"),
    [
        ("ddp", "hang", "rank 1 is behind"),
        ("fsdp2", "hang_in_c", "rank 1 does not answer"),
        ("ddp", "stop", "rank 1 does not answer"),
    ],
)
def test_a_hang_is_noticed_in_time_and_names_the_rank(
    folder: Path, strategy: Strategy, action: str, words: str
) -> None:
    name = f"hang-{action}"
    ended = run(
        folder, strategy, 2, name, f"training.timeout_s={TIMEOUT_S}", fault=f"step:1:3:{action}"
    )
    found = summary(folder, name)
    assert found["exit"] == 4, ended.printed
    assert f"no progress for {TIMEOUT_S} s in step 3: {words}" in found["reason"]
    assert "rank 0:\n" in ended.printed
    assert "rank 1:\n" in ended.printed
    assert left_over(folder, name) == []


@pytest.mark.parametrize(
    ("fault", "asynchronous"),
    [
        ("step:1:4:kill", "false"),
        ("step:1:4:segfault", "false"),
        ("step:1:4:exit7", "false"),
        ("step:1:4:exit0", "false"),
        ("begin:1:4:kill", "false"),
        ("half:1:4:kill", "false"),
        ("part:1:4:kill", "true"),
        ("commit:0:4:kill", "true"),
    ],
)
def test_a_crash_is_survived_with_max_restarts(
    folder: Path, whole: str, fault: str, asynchronous: str
) -> None:
    """In training or while saving; the group comes back from step 2 and ends as if nothing was."""
    name = "crash-" + fault.replace(":", "-")
    ended = run(
        folder,
        "fsdp2",
        2,
        name,
        "training.checkpoint_every=2",
        f"training.async_save={asynchronous}",
        fault=fault,
        options=("--max_restarts", "2"),
        environment={"FAULT_ONCE": str(folder / name)},
    )
    assert ended.code == 0, ended.printed
    assert ended.printed.count("step_00000002 after 2 steps") == 1
    assert summary(folder, name)["steps"] == 6
    assert curve(folder, name) == curve(folder, whole)
    assert left_over(folder, name) == []


def test_out_of_memory_on_one_rank_ends_all_with_5(folder: Path) -> None:
    ended = run(folder, "zero2", 2, "oom", fault="step:1:3:oom")
    assert summary(folder, "oom")["exit"] == 5, ended.printed
    assert ended.printed.count("Traceback") <= 1
    assert left_over(folder, "oom") == []


@pytest.mark.parametrize("strategy", ["ddp", "fsdp2", "zero1", "zero2", "zero3"])
def test_a_nan_on_one_rank_is_skipped_by_all(folder: Path, strategy: Strategy) -> None:
    name = f"nan-{strategy}"
    ended = run(
        folder,
        strategy,
        2,
        name,
        "training.on_non_finite=skip",
        "training.checkpoint_every=1",
        "training.keep_last=9",
        fault="gradient:1:4:nan",
    )
    assert ended.code == 0, ended.printed
    checkpoints = folder / "runs" / name / "checkpoints"
    before, after = (
        [
            (checkpoints / f"step_{step:08d}" / f"rank_{r:05d}.safetensors").read_bytes()
            for r in (0, 1)
        ]
        for step in (3, 4)
    )
    assert before == after
    state = json.loads((checkpoints / "step_00000006" / "state.json").read_text())
    assert (state["step"], state["updates"]) == (6, 5)


def test_a_flipped_bit_of_one_of_three_replicas_is_named(folder: Path) -> None:
    run(
        folder,
        "ddp",
        4,
        "flip",
        "training.check_replicas_every=1",
        fault="updated:2:3:flip",
    )
    found = summary(folder, "flip")
    assert found["exit"] == 3
    assert "rank 2 differs from the 3 others" in found["reason"]


@pytest.mark.parametrize("policy", ["stop", "warn"])
def test_a_disk_that_is_full_for_one_rank_is_the_same_to_all(
    folder: Path, whole: str, policy: str
) -> None:
    name = f"full-{policy}"
    ended = run(
        folder, "fsdp2", 2, name, f"training.on_save_error={policy}", fault="begin:1:3:file_limit"
    )
    found = summary(folder, name)
    assert found["exit"] == (3 if policy == "stop" else 0), ended.printed
    assert found["steps"] == (3 if policy == "stop" else 6)
    assert "rank_00001.safetensors: cannot be written: File too large" in ended.printed
    assert ended.printed.count("Traceback") <= 1  # the launcher's own
    assert list((folder / "runs" / name / "checkpoints").iterdir()) == []
    if policy == "warn":
        assert curve(folder, name) == curve(folder, whole)


def test_a_late_rank_is_named_and_the_run_goes_on(folder: Path) -> None:
    ended = run(folder, "ddp", 2, "late", "training.steps=60", fault="step:1:*:late")
    assert ended.code == 0, ended.printed
    assert "warning: rank 1 is late: the others wait for it" in ended.printed
    assert "rank 0 is late" not in ended.printed
    assert len([r for r in metrics(folder, "late") if r["kind"] == "train"]) == 60


def test_a_reduction_that_one_rank_has_too_many_is_no_hang(folder: Path) -> None:
    ended = run(
        folder,
        # DDP itself dies of DETAIL on gloo (torch 2.13, in `_ddp_init_helper`).
        "fsdp2",
        2,
        "order",
        f"training.timeout_s={TIMEOUT_S}",
        fault="step:1:3:one_more_reduction",
        environment={"TORCH_DISTRIBUTED_DEBUG": "DETAIL"},
    )
    found = summary(folder, "order")
    assert found["exit"] in (1, 4), ended.printed
    assert "step 3" in found["reason"]
    assert left_over(folder, "order") == []
