import json
from pathlib import Path
from typing import Any

import pytest

from tests.data.shard_files import write_indexed_folder
from toolkit.config import dump_run_config, load_run_config
from toolkit.errors import UsageError
from toolkit.runs.summary import summarise
from toolkit.training.run_folder import end_start, write_summary

SUMMARY: dict[str, Any] = {
    "exit": 0,
    "reason": "done",
    "steps": 2,
    "final_loss": 5.5,
    "tokens_per_s": 1234.6,
    "parameters": 12_000,
    "strategy": "fsdp2",
    "world_size": 2,
}


def train(step: int, loss: float) -> dict[str, Any]:
    return {"kind": "train", "step": step, "loss": loss, "tokens": 512 * step}


RECORDS = [
    train(1, 6.25),
    {"kind": "eval", "step": 1, "loss": 6.1, "tokens": 480},
    {"kind": "sample", "step": 1, "text": "first"},
    train(2, 5.5),
    {"kind": "eval", "step": 2, "loss": 5.6, "tokens": 480},
    {"kind": "sample", "step": 2, "text": "second\n"},
]


@pytest.fixture
def folder(run_file: Path) -> Path:
    folder = run_file.parent / "runs" / "tiny"
    folder.mkdir(parents=True)
    return folder


def leave(folder: Path, records: list[dict[str, Any]], **changes: Any) -> None:
    lines = [json.dumps(record) + "\n" for record in records]
    (folder / "metrics.jsonl").write_text("".join(lines))
    write_summary(folder, {**SUMMARY, **changes})


def test_a_run_is_shown_in_a_few_lines(run_file: Path, folder: Path) -> None:
    leave(folder, RECORDS)
    assert summarise(run_file) == [
        "done: 2 steps, 1,024 tokens, 12,000 parameters, fsdp2 on 2",
        "training loss   6.250 at step 1, 5.500 at step 2",
        "validation loss 6.100 at step 1, perplexity 445.9",
        "validation loss 5.600 at step 2, perplexity 270.4",
        "speed           1,235 tokens/s, median of the steps",
        "sample          'second\\n'",
        f"run folder      {folder}",
    ]


def test_what_a_run_does_not_have_is_not_shown(run_file: Path, folder: Path) -> None:
    leave(folder, RECORDS[:1], tokens_per_s=None)
    assert summarise(run_file)[1:] == [
        "training loss   6.250 at step 1, 6.250 at step 1",
        "speed           no step was timed",
        f"run folder      {folder}",
    ]


def test_why_a_run_failed_is_reported(run_file: Path, folder: Path) -> None:
    leave(folder, RECORDS, exit=6, reason="step 3: the loss is nan")
    assert summarise(run_file)[0].startswith("step 3: the loss is nan: 2 steps")


def test_how_the_last_start_ended_stands_beside_what_the_run_did(
    run_file: Path, folder: Path
) -> None:
    leave(folder, RECORDS)
    described = summarise(run_file)
    end_start(folder, {**SUMMARY, "exit": 2, "reason": "trained with seed 1337, not 1"})
    assert summarise(run_file) == [
        *described[:-1],
        "last start      ended with 2: trained with seed 1337, not 1",
        described[-1],
    ]


def test_overrides_choose_the_run(run_file: Path, folder: Path) -> None:
    leave(folder, RECORDS)
    with pytest.raises(UsageError, match="runs/other is no run; train it first"):
        summarise(run_file, ["run_name=other"])
    with pytest.raises(UsageError, match=r"seed=1 changes nothing of .*; give the run's YAML"):
        summarise(folder, ["seed=1"])


def test_a_run_folder_shows_the_same(run_file: Path, folder: Path) -> None:
    leave(folder, RECORDS)
    assert summarise(folder) == summarise(run_file)


def test_a_run_without_a_step_is_refused(run_file: Path, folder: Path) -> None:
    leave(folder, [])
    with pytest.raises(UsageError, match="holds no finished start"):
        summarise(run_file)


def test_a_run_that_is_not_over_is_refused(run_file: Path, folder: Path) -> None:
    leave(folder, RECORDS)
    (folder / "summary.json").unlink()
    with pytest.raises(UsageError, match="holds no finished start"):
        summarise(run_file)


@pytest.mark.parametrize("damage", [b'{"kind": "train", "step": 3, "lo', b"\xff\xfe", b"{}", b"5"])
def test_a_damaged_line_is_skipped(run_file: Path, folder: Path, damage: bytes) -> None:
    leave(folder, RECORDS)
    with (folder / "metrics.jsonl").open("ab") as file:
        file.write(damage)
    assert summarise(run_file)[1] == "training loss   6.250 at step 1, 5.500 at step 2"


def test_last_steps_time_epochs_and_utilisation(run_file: Path, folder: Path) -> None:
    """On two H100 at an eighth of what they could do, worked out by hand."""
    timed = [{**train(step, 7 - step / 10), "step_s": 90.0} for step in range(1, 41)]
    write_indexed_folder(folder / "shards", tokens=10)
    index = (folder / "shards" / "index.json").read_text()
    assert '"tokens": 10' in index
    changes = [f"data.train={folder / 'shards'}", "precision=bf16", "data.seq_len=16"]
    config = load_run_config(run_file, changes)
    (folder / "config.yaml").write_text(dump_run_config(config))
    devices = {"type": "cuda", "names": ["NVIDIA H100 80GB HBM3"] * 2}
    (folder / "environment.json").write_text(json.dumps({"devices": devices}))
    # N without positions: 512 x 16 + 12 x 16^2 + 13 x 16 + 2 x 16; attention: 12 x 1 x 16 x 16.
    arithmetic = 6 * (8192 + 3072 + 208 + 32) + 3072
    leave(folder, timed, tokens_per_s=2 * 989e12 / 8 / arithmetic)
    lines = summarise(run_file)
    assert "                3.150 mean of the last 4 steps" in lines
    assert any(line.endswith("median of the steps, 12.5% MFU") for line in lines)
    assert "steps took      1.0 hours, 2048.00 epochs" in lines
