"""A run in fp16 with torch's own scaler: the loop, its record, and the scale in a checkpoint."""

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.half_precision import OVERFLOWS, fp16_on_cpu
from toolkit.config import load_run_config
from toolkit.engines.accelerate_internals import forget_engine
from toolkit.engines.launched import read_launch
from toolkit.memory.advice import estimate_run
from toolkit.training.build import build_run
from toolkit.training.loop import Loop
from toolkit.training.run_folder import run_folder

Start = Callable[..., tuple[Loop, list[str]]]


@pytest.fixture
def start(run_file: Path) -> Start:
    """Start the tiny run in fp16, its losses scaled far too much at first."""

    def start_run(*overrides: str) -> tuple[Loop, list[str]]:
        forget_engine()
        said: list[str] = []
        launched = read_launch({})
        estimate = estimate_run(load_run_config(run_file), launched, device_type="cpu")
        config = load_run_config(run_file, ["precision=fp16", *overrides])
        folder = run_folder(config)
        folder.mkdir(parents=True, exist_ok=True)
        with fp16_on_cpu("single", scale=OVERFLOWS):
            run = build_run(config, launched, folder)
        return Loop(run, folder, said.append, estimate=estimate), said

    return start_run


def test_a_run_finds_its_scale_and_resumes_with_it(start: Start) -> None:
    loop, said = start("training.checkpoint_every=2", "training.stop_at=2")
    loop.fit()
    first = next(line for line in said if line.startswith("step"))
    assert "| skipped " in first
    found = loop.engine.state.loss_scale
    assert found is not None
    assert found["scale"] < OVERFLOWS
    assert found["held"] == 2
    assert loop.updates == 2
    resumed, said = start("training.checkpoint_every=2")
    assert resumed.step == 2
    assert resumed.engine.state.loss_scale == found
    resumed.fit()
    assert not [line for line in said if "skipped" in line]
    assert resumed.engine.state.loss_scale == {"scale": found["scale"], "held": 4}
