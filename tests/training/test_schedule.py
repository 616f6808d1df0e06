import math

import pytest

from toolkit.config import OptimizerConfig
from toolkit.training.schedule import lr_at


def optimizer(warmup_steps: int = 0, lr: float = 1.0, min_lr: float = 0.1) -> OptimizerConfig:
    return OptimizerConfig(lr=lr, min_lr=min_lr, warmup_steps=warmup_steps)


def curve(config: OptimizerConfig, *, steps: int, updates: int) -> list[float]:
    return [lr_at(step, config, steps=steps) for step in range(updates)]


def test_warm_up_rises_in_equal_parts_from_above_zero_to_the_peak() -> None:
    found = curve(optimizer(warmup_steps=5), steps=20, updates=5)
    assert found == pytest.approx([0.2, 0.4, 0.6, 0.8, 1.0])


def test_a_run_that_ends_in_warm_up_begins_as_a_longer_one() -> None:
    config = optimizer(warmup_steps=10)
    assert curve(config, steps=4, updates=4) == curve(config, steps=20, updates=4)
    assert lr_at(3, config, steps=4) == pytest.approx(0.4)


def test_half_a_cosine_leads_from_the_peak_to_the_floor() -> None:
    """By hand: cos 0, 45, 90, 135 degrees, over a span of 0.9 above 0.1."""
    found = curve(optimizer(warmup_steps=2), steps=6, updates=7)[2:]
    high, low = 0.1 + 0.45 * (1 + math.sqrt(0.5)), 0.1 + 0.45 * (1 - math.sqrt(0.5))
    assert found == pytest.approx([1.0, high, 0.55, low, 0.1])


def test_without_warm_up_the_first_update_is_at_the_peak() -> None:
    assert lr_at(0, optimizer(), steps=10) == 1.0


def test_beyond_the_last_step_the_floor_stays() -> None:
    """A schedule of 7 that is run for 10 updates: the last three are at min_lr exactly."""
    found = curve(optimizer(warmup_steps=2), steps=7, updates=10)
    assert found[7:] == [0.1, 0.1, 0.1]
    assert found[6] > 0.1
    assert lr_at(10**9, optimizer(), steps=7) == 0.1


def test_it_never_climbs_again() -> None:
    found = curve(optimizer(warmup_steps=5), steps=20, updates=60)[5:]
    assert found == sorted(found, reverse=True)
    assert min(found) == 0.1


def test_warm_up_may_fill_the_whole_schedule() -> None:
    found = curve(optimizer(warmup_steps=3), steps=3, updates=5)
    assert found == pytest.approx([1 / 3, 2 / 3, 1.0, 0.1, 0.1])


def test_a_floor_at_the_peak_is_a_constant() -> None:
    assert set(curve(optimizer(min_lr=1.0), steps=5, updates=9)) == {1.0}


def test_it_is_a_function_of_the_step_alone() -> None:
    """Asked out of order and again, it answers the same, so resuming needs no state of it."""
    config = optimizer(warmup_steps=3)
    forward = curve(config, steps=12, updates=15)
    backward = [lr_at(step, config, steps=12) for step in reversed(range(15))]
    assert backward[::-1] == forward
