"""What a start leaves in its folder when it fails, trains, or does nothing."""

import json
from pathlib import Path

import pytest

from tests.training.runs import UNFORESEEN, Failure, folder_of, summary
from toolkit.training import worker

pytestmark = pytest.mark.usefixtures("fresh_accelerate", "unlaunched")


TWO_STEPS = ("training.steps=2", "training.checkpoint_every=2")


def test_a_start_that_trains_nothing_leaves_what_the_run_did(
    run_file: Path,
) -> None:
    """Refused, failed in its first step, or with nothing to do."""
    assert worker.main(["--config", str(run_file), *TWO_STEPS]) == 0
    done = summary(run_file)
    assert done["peak_memory_bytes"] is not None
    described = folder_of(run_file) / "config.yaml"
    config = described.read_text()
    assert worker.main(["--config", str(run_file), *TWO_STEPS, "seed=9"]) == 2
    assert "seed" in summary(run_file, "last_start.json")["reason"]
    assert (summary(run_file), described.read_text()) == (done, config)
    assert worker.main(["--config", str(run_file), "training.steps=3"], [Failure(UNFORESEEN)]) == 1
    assert (
        summary(run_file, "last_start.json")["reason"] == "rank 0, step 3: ValueError: unforeseen"
    )
    assert summary(run_file) == done
    assert worker.main(["--config", str(run_file), *TWO_STEPS]) == 0
    assert summary(run_file) == done
    assert summary(run_file, "last_start.json") == {"exit": 0, "reason": "done"}


def test_a_start_that_trains_has_a_summary_of_its_own(
    run_file: Path,
) -> None:
    """Though it fails later; and one that is killed leaves no other's behind."""
    assert worker.main(["--config", str(run_file), *TWO_STEPS]) == 0
    path = folder_of(run_file) / "summary.json"
    failure = Failure(UNFORESEEN, after=1, exists=path)
    assert worker.main(["--config", str(run_file), "training.steps=4"], [failure]) == 1
    assert failure.existed == [True, False]
    found = summary(run_file)
    assert (found["exit"], found["steps"]) == (1, 3)
    assert found["reason"] == "rank 0, step 4: ValueError: unforeseen"


def test_a_run_that_is_set_back_is_what_it_was_until_it_has_trained_again(
    run_file: Path,
) -> None:
    keys = ("training.steps=2", "training.checkpoint_every=1")
    assert worker.main(["--config", str(run_file), *keys]) == 0
    finished = summary(run_file)
    folder = folder_of(run_file)
    (folder / "checkpoints" / "step_00000002" / "manifest.json").unlink()
    assert worker.main(["--config", str(run_file), *keys], [Failure(UNFORESEEN)]) == 1
    assert summary(run_file) == finished
    assert json.loads((folder / "last_start.json").read_text())["exit"] == 1
    assert worker.main(["--config", str(run_file), *keys, "training.stop_at=2"]) == 0
    assert summary(run_file)["steps"] == 2
    assert json.loads((folder / "last_start.json").read_text())["exit"] == 0


def test_a_failure_nobody_foresaw_has_its_traceback_and_its_rank(
    capsys: pytest.CaptureFixture[str], run_file: Path
) -> None:
    assert worker.main(["--config", str(run_file)], [Failure(UNFORESEEN)]) == 1
    assert summary(run_file)["reason"] == "rank 0, step 1: ValueError: unforeseen"
    assert "rank 0, step 1: failed\nTraceback" in capsys.readouterr().err


def test_a_lost_connection_is_4_and_one_sentence(
    run_file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """As gloo words it (torch 2.13) where the process at the other end is gone."""
    lost = RuntimeError("[/gloo/transport/tcp/pair.cc:547] Connection closed by peer [10.0.0.2]:5")
    assert worker.main(["--config", str(run_file)], [Failure(lost, after=1)]) == 4
    reason = "rank 0, step 2: lost the connection to another rank"
    assert summary(run_file)["reason"] == reason
    printed = capsys.readouterr().err
    assert f"error: {reason} ({lost}); start again to resume" in printed
    assert "Traceback" not in printed
