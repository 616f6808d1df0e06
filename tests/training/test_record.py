"""When steps are recorded, what of a repeated update is kept, and a folder in the way."""

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from toolkit.errors import SaveError
from toolkit.training.callback import Phase, Progress
from toolkit.training.record import Record

PHASES: tuple[Phase, ...] = ("forward", "backward", "optimizer")


class Module(torch.nn.Module):
    """A model whose loss is 3 nats for each of its targets."""

    def forward(self, tokens: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        return torch.tensor(3.0 * targets.numel())


@pytest.fixture
def engine() -> Any:
    state = SimpleNamespace(held_gradient_bytes=lambda: 8, held_bytes=lambda: (16, 32))
    return SimpleNamespace(
        rank=0, device=torch.device("cpu"), state=state, module=Module(), world_size=1
    )


def update(record: Record, engine: Any, step: int, *, times: int = 1) -> None:
    """Do a step of one micro-step; where fp16 overflowed, the same update again."""
    progress = Progress(step=step - 1, done=step - 1)
    with record.during_update(progress):
        for _ in range(times):
            for phase in PHASES:
                record.on_phase(phase)
                if phase == "forward":
                    engine.module(torch.zeros(1, 4), torch.zeros(1, 4, dtype=torch.long))
    progress.step, progress.loss, progress.seconds = step, 3.0, 1.0
    record.after_step(progress, [])


def test_only_the_steps_that_are_asked_for_are_written(engine: Any, tmp_path: Path) -> None:
    lines: list[str] = []
    record = Record(tmp_path, engine, (3, 4), lines.append)
    for step in range(1, 6):
        update(record, engine, step)
    found = [json.loads(line) for line in record.file.read_text().splitlines()]
    assert [each["step"] for each in found] == [3, 4]
    assert found[0]["losses"] == [[4, 12.0]]
    assert found[0]["gradient_bytes"] == [8] * 5
    assert len(lines) == 1
    update(record, engine, 3)
    assert len(record.file.read_text().splitlines()) == 1


def test_a_repeated_update_is_kept_once(engine: Any, tmp_path: Path) -> None:
    record = Record(tmp_path, engine, (3, 3), print)
    update(record, engine, 3, times=3)
    found = json.loads(record.file.read_text())
    assert found["phases"] == list(PHASES)
    assert len(found["marks"]) == len(PHASES) + 2
    assert found["losses"] == [[4, 12.0]]


def test_without_the_key_nothing_is_there(engine: Any, tmp_path: Path) -> None:
    record = Record(tmp_path, engine, None, print)
    for step in range(1, 6):
        with record.during_update(Progress(step=step, done=step)):
            assert not engine.module._forward_hooks
        update(record, engine, step)
    assert list(tmp_path.iterdir()) == []


def test_a_file_in_the_way_is_named(engine: Any, tmp_path: Path) -> None:
    (tmp_path / "record").write_text("")
    with pytest.raises(SaveError, match=r"record/rank_00000\.jsonl: cannot be written"):
        update(Record(tmp_path, engine, (3, 3), print), engine, 3)
