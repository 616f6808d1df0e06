"""What is done about a step's numbers."""

import pytest

from toolkit.config import TrainingConfig
from toolkit.errors import NonFiniteError
from toolkit.training.callback import Progress, Verdict
from toolkit.training.health import Health


def judge(health: Health, *losses: float) -> list[Verdict]:
    verdicts = []
    for step, loss in enumerate(losses, start=1):
        progress = Progress(step=step, loss=loss, grad_norm=loss, was_skipped=loss != loss)
        health.after_step(progress, ())
        verdicts.append(progress.verdict)
    return verdicts


def falling(count: int) -> list[float]:
    return [5 - 0.02 * step + 0.01 * (-1) ** step for step in range(count)]


def test_a_spike_is_named_and_ordinary_noise_is_not() -> None:
    health = Health(TrainingConfig())
    assert set(judge(health, *falling(60))) == {"good"}
    assert judge(health, 30.0, 4.1) == ["spike", "good"]


def test_a_spike_rolls_back_where_that_is_asked() -> None:
    health = Health(TrainingConfig(on_loss_spike="roll_back"))
    judge(health, *falling(60))
    assert judge(health, 30.0) == ["roll_back"]


def test_a_loss_that_is_not_finite_though_an_update_was_made_always_ends() -> None:
    health = Health(TrainingConfig(on_non_finite="skip"))
    with pytest.raises(NonFiniteError):
        health.after_step(Progress(step=1, loss=float("inf"), grad_norm=1.0), ())
