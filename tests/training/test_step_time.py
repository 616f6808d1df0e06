"""A run's steps by part, and what its end says of the prediction."""

import time
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from toolkit.training import step_time
from toolkit.training.callback import Progress
from toolkit.training.step_time import StepTimes


def times(lines: list[str]) -> StepTimes:
    engine = SimpleNamespace(device=torch.device("cpu"), rank=0)
    run: Any = SimpleNamespace(engine=engine)
    return StepTimes(run, lines.append)


def one_step(measured: StepTimes, done: int) -> None:
    started = time.perf_counter()
    progress = Progress(done=done)
    with measured.during_update(progress):
        time.sleep(0.02)
        measured.on_phase("backward")
        measured.on_phase("optimizer")
        while time.perf_counter() - started < 0.04:
            pass
    time.sleep(0.01)
    progress.seconds = time.perf_counter() - started
    measured.after_step(progress, [])


def test_parts_add_up_to_the_step() -> None:
    measured = times([])
    one_step(measured, done=2)
    assert measured.step_s is None
    one_step(measured, done=3)
    parts = measured.parts
    assert parts is not None
    assert sum(parts.values()) == pytest.approx(measured.step_s)
    assert parts["waiting"] > 0.015
    assert parts["loop"] > 0.008
    assert parts["passes"] < 0.01


def test_where_nothing_covers_the_machine_no_number_is_predicted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def missing(*arguments: object) -> None:
        raise step_time.NotCalibrated("no calibration covers this")

    monkeypatch.setattr(step_time, "find_calibration", missing)
    monkeypatch.setattr(step_time, "launched_step", lambda *arguments: None)
    lines: list[str] = []
    measured = times(lines)
    measured.run.config = measured.run.engine.launched = None  # type: ignore[misc,assignment]
    one_step(measured, done=3)
    measured.at_end(Progress(), None)
    assert lines[0].endswith("not predicted: no calibration covers this")
    assert measured.predicted_s is None
