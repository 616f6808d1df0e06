import json
from pathlib import Path
from typing import Any

import pytest

from toolkit.errors import UsageError
from toolkit.training.metrics import MetricsLog, TrainLine, eval_line

RECORD: dict[str, Any] = {
    "kind": "train",
    "step": 12,
    "loss": 3.14159,
    "grad_norm": 0.98765,
    "lr": 6e-4,
    "tokens": 6144,
    "tokens_per_s": 12345.6,
    "step_s": 0.0415,
    "peak_memory_bytes": 3 * 2**29,
    "skipped": 0,
}


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "metrics.jsonl"


def log(path: Path, *, last_step: int, write: range = range(0)) -> None:
    """Start, or resume after `last_step`, and write a line for each step."""
    metrics = MetricsLog(path, last_step=last_step)
    for step in write:
        metrics.write({"kind": "train", "step": step})
    metrics.close()


def steps(path: Path) -> list[int]:
    return [json.loads(line)["step"] for line in path.read_text().splitlines()]


def test_a_record_is_a_line_and_there_at_once(path: Path) -> None:
    metrics = MetricsLog(path, last_step=0)
    assert path.read_text() == ""
    metrics.write(RECORD)
    assert path.read_text() == json.dumps(RECORD) + "\n"
    metrics.write({"kind": "eval"})
    assert path.read_text().splitlines()[1] == '{"kind": "eval"}'
    metrics.close()


def test_a_new_run_starts_the_file_anew(path: Path) -> None:
    log(path, last_step=0, write=range(1, 4))
    log(path, last_step=0, write=range(1, 2))
    assert steps(path) == [1]


def test_carrying_on_drops_what_will_be_done_again(path: Path) -> None:
    log(path, last_step=0, write=range(1, 8))
    log(path, last_step=5, write=range(6, 9))
    assert steps(path) == [1, 2, 3, 4, 5, 6, 7, 8]


def test_an_evaluation_at_the_last_step_is_kept(path: Path) -> None:
    lines = ['{"kind": "train", "step": 2}', '{"kind": "eval", "step": 2}']
    path.write_text("\n".join([*lines, '{"kind": "train", "step": 3}']) + "\n")
    log(path, last_step=2, write=range(3, 4))
    assert path.read_text().splitlines() == [*lines, '{"kind": "train", "step": 3}']


def test_a_start_that_records_nothing_leaves_the_file(path: Path) -> None:
    log(path, last_step=0, write=range(1, 4))
    log(path, last_step=0)
    assert steps(path) == [1, 2, 3]


@pytest.mark.parametrize("torn", ['{"kind": "tra', '{"kind": "train", "st', "4", "[]", "\0\0\0"])
def test_a_line_torn_by_a_crash_is_dropped_and_the_next_stands_alone(path: Path, torn: str) -> None:
    path.write_text('{"kind": "train", "step": 1}\n' + torn)
    log(path, last_step=1, write=range(2, 3))
    assert steps(path) == [1, 2]


def test_carrying_on_without_the_file_begins_one(path: Path) -> None:
    log(path, last_step=3, write=range(4, 5))
    assert steps(path) == [4]
    assert [file.name for file in path.parent.iterdir()] == [path.name]


def test_the_line_of_a_step() -> None:
    line = TrainLine(steps=100, last_step=100)
    assert line.write(RECORD) == (
        "step    12/100 | loss 3.1416 | grad_norm 0.988 | lr 6.00e-04 | 42 ms | "
        "12,346 tokens/s | 1.5 GiB"
    )
    assert line.write({**RECORD, "skipped": 3}).endswith(" | 1.5 GiB | skipped 3")


def test_the_line_knows_epoch_utilisation_and_time_left() -> None:
    """88 steps of 512 tokens are left, at 1,000 tokens a second 45 of them."""
    line = TrainLine(steps=200, last_step=100, steps_per_epoch=48, utilisation=2e-5)
    written = line.write(RECORD, tokens_per_s=1_000.0)
    assert written.endswith(" | 1.5 GiB | 24.7% MFU | epoch 0.25 | 45 s left")


@pytest.mark.parametrize(
    ("tokens_per_s", "left"), [(45.0, "17 min"), (4.0, "3 h 8 min"), (0.2, "2 d 15 h")]
)
def test_time_left_has_two_units_at_most(tokens_per_s: float, left: str) -> None:
    written = TrainLine(steps=100, last_step=100).write(RECORD, tokens_per_s=tokens_per_s)
    assert written.endswith(f" | {left} left")


def test_every_third_step_and_the_last_have_a_line() -> None:
    line = TrainLine(steps=100, last_step=8, every=3)
    assert [step for step in range(1, 9) if line.is_due(step)] == [3, 6, 8]


def test_the_line_of_an_evaluation() -> None:
    record = {"kind": "eval", "step": 60, "loss": 3.14159, "tokens": 8192}
    assert eval_line(record, steps=180) == "eval    60/180 | loss 3.1416 | 8,192 tokens"


def test_a_file_that_cannot_be_written_is_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"metrics\.jsonl: cannot be written: No such file"):
        MetricsLog(tmp_path / "gone" / "metrics.jsonl", last_step=0)
