"""A slow rank is named, and an even pace is not remarked on."""

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from toolkit.training import stragglers
from toolkit.training.callback import Progress
from toolkit.training.stragglers import EVERY, Pace, Stragglers, judge


def test_an_even_pace_is_left_alone() -> None:
    paces = [Pace(0.004, 0.010), Pace(0.001, 0.012), Pace(0.006, 0.011)]
    assert judge(paces, step_s=0.1) == []


@pytest.mark.parametrize("ranks", [2, 3, 8])
def test_the_rank_that_all_wait_for_waits_least(ranks: int) -> None:
    paces = [Pace(0.05 if rank != 1 else 0.002, 0.01) for rank in range(ranks)]
    (sentence,) = judge(paces, step_s=0.1)
    assert sentence == "rank 1 is late: the others wait for it 48 of the 100 ms that a step takes"


def test_two_late_ranks_of_five_are_both_named() -> None:
    paces = [Pace(0.0 if rank in (2, 4) else 0.05, 0.01) for rank in range(5)]
    assert [sentence.split(" is")[0] for sentence in judge(paces, step_s=0.1)] == [
        "rank 2",
        "rank 4",
    ]


def test_a_slow_device_is_named_with_its_factor() -> None:
    paces = [Pace(0.0, 0.021), Pace(0.0, 0.010), Pace(0.0, 0.010)]
    assert judge(paces, step_s=0.1) == [
        "rank 0 takes 2.1 times as long as the others to compute",
    ]


def test_it_looks_at_the_steps_since_the_last_look(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rank 0 of two: it waits half of each step in the first half, and not at all in the second."""
    now = 0.0
    monkeypatch.setattr(stragglers, "time", SimpleNamespace(perf_counter=lambda: now))
    monkeypatch.setattr(stragglers, "_time_product", lambda device: 0.01)
    engine: Any = SimpleNamespace(
        world_size=2,
        device=torch.device("cpu"),
        ranks=SimpleNamespace(waited_s=7.0, gather=lambda pace: [pace, Pace(0.0, 0.01)]),
    )
    printed: list[str] = []
    found = Stragglers(engine, printed.append)
    for step in range(2 * EVERY):
        now += 1.0
        engine.ranks.waited_s += 0.5 if step < EVERY else 0.0
        found.after_step(Progress(), ())
    late = "rank 1 is late: the others wait for it 500 of the 1000 ms that a step takes"
    assert printed == [f"warning: {late}"]
