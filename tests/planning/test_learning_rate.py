"""The learning rate at other tokens per step, against the rules by hand."""

from math import sqrt
from pathlib import Path

import pytest
from typer.testing import CliRunner

from toolkit.cli import app
from toolkit.config import load_run_config
from toolkit.planning.learning_rate import ScaledRate, draw_schedule

DEMO = str(Path(__file__).parents[2] / "configs" / "train" / "demo.yaml")


@pytest.mark.parametrize(
    ("name", "recipe", "factor"),
    [("adamw", 256, 2.0), ("sgd", 256, 4.0), ("adamw", 4096, 0.5), ("adamw", 512, sqrt(2))],
)
def test_the_rate_follows_the_rule_of_its_optimizer(name: str, recipe: int, factor: float) -> None:
    run = load_run_config(Path(DEMO), [f"optimizer.name={name}"])
    scaled = ScaledRate(run, recipe)
    changed = load_run_config(Path(DEMO), [f"optimizer.name={name}", *scaled.overrides()])
    assert changed.optimizer.lr == pytest.approx(3e-3 * factor, rel=1e-5)
    assert changed.optimizer.min_lr == pytest.approx(3e-4 * factor, rel=1e-5)


@pytest.mark.parametrize(("recipe", "warmup"), [(512, 5), (2048, 20), (64, 1)])
def test_warm_up_is_kept_in_tokens_and_stays(recipe: int, warmup: int) -> None:
    scaled = ScaledRate(load_run_config(Path(DEMO), []), recipe)
    assert f"optimizer.warmup_steps={warmup}" in scaled.overrides()


def test_no_warm_up_stays_none() -> None:
    run = load_run_config(Path(DEMO), ["optimizer.warmup_steps=0"])
    assert "optimizer.warmup_steps=0" in ScaledRate(run, 64).overrides()


def test_the_schedule_rises_to_the_peak_and_falls_to_the_floor() -> None:
    lines = list(draw_schedule(load_run_config(Path(DEMO), ["optimizer.warmup_steps=60"])))
    top, bottom = lines[0].partition("|")[2], lines[7].partition("|")[2]
    assert top.index("#") == pytest.approx(20, abs=2)  # a third of 60 columns
    assert bottom.count("#") > 50
    assert "61,440 tokens, to 0.003" in lines[-1]


def test_train_scales_and_draws_without_starting() -> None:
    words = ["train", "--strategy", "ddp", "--config", DEMO, "--scale-lr-from", "256"]
    result = CliRunner().invoke(app, [*words, "--show-schedule"])
    assert result.exit_code == 0
    assert "square-root rule of adamw: 1,024 tokens per step are 4 x" in result.stderr
    assert "to 0.006;" in result.stdout
