"""A run in fp16 with torch's own scaler: the loop, its record, and the scale in a checkpoint."""

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.half_precision import OVERFLOWS, fp16_on_cpu
from tests.training.runs import TinyRun
from toolkit.config import load_run_config

Start = Callable[..., tuple[TinyRun, list[str]]]


@pytest.fixture
def start(run_file: Path) -> Start:
    """Start the tiny run in fp16, its losses scaled far too much at first."""

    def start_run(*overrides: str) -> tuple[TinyRun, list[str]]:
        printed: list[str] = []
        config = load_run_config(run_file, ["precision=fp16", *overrides])
        with fp16_on_cpu("single", scale=OVERFLOWS):
            return TinyRun(config, printed.append), printed

    return start_run


def test_a_run_finds_its_scale_and_resumes_with_it(start: Start) -> None:
    loop, printed = start("training.checkpoint_every=2", "training.stop_at=2")
    loop.fit()
    first = next(line for line in printed if line.startswith("step"))
    assert "| skipped " in first
    found = loop.engine.state.loss_scale
    assert found is not None
    assert found["scale"] < OVERFLOWS
    assert found["held"] == 2
    assert loop.progress.updates == 2
    resumed, printed = start("training.checkpoint_every=2")
    assert resumed.progress.step == 2
    assert resumed.engine.state.loss_scale == found
    resumed.fit()
    assert not [line for line in printed if "skipped" in line]
    assert resumed.engine.state.loss_scale == {"scale": found["scale"], "held": 4}
