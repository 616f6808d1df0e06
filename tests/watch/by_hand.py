"""The first batch of the lesson, computed here, and recordings compared with it."""

from typing import Any

import numpy as np
import pytest

from toolkit.watch.lesson import LR, Case

BASE = Case(strategy="ddp", accumulation="replicated", gpus=4, grad_accum_steps=2)
Recording = dict[str, Any]


def by_hand(case: Case, batch: int, weights: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return each micro-step's gradient by rank, and the mean's, [ranks, micro-steps, weights]."""
    x = np.array(
        [
            [case.micro_batch(batch, m, rank) for m in range(case.grad_accum_steps)]
            for rank in range(case.gpus)
        ]
    )
    own = (weights - x).sum(axis=2) * case.gpus / case.samples
    return own, (weights - x).reshape(-1, case.weights).sum(axis=0) / case.samples


def check_first_batch(recording: Recording, case: Case) -> None:
    weights = case.first_weights()
    own, mean = by_hand(case, 0, weights)
    frames = recording["batches"][0]["frames"]
    for frame in frames:
        for rank, found in enumerate(frame["ranks"]):
            if frame["phase"] == "forward":
                x = case.micro_batch(0, frame["micro_step"], rank)
                assert found["seen"] == weights.tolist()
                assert found["losses"] == (0.5 * ((weights - x) ** 2).sum(axis=1)).tolist()
            if frame["phase"] == "backward":
                assert found["own"] == own[rank, frame["micro_step"]].tolist()
    for found in frames[-1]["ranks"]:
        kept = [w for w in found["weights"] if w is not None] or found["master"]
        assert kept
        for after, before, gradient in zip(found["weights"], weights, mean, strict=True):
            assert after is None or after == pytest.approx(before - LR * gradient, rel=1e-6)
    held = {
        (index, value)
        for found in frames[-2]["ranks"]
        for part in found["gradient"][-1:]
        for index, value in enumerate(part)
        if value is not None
    }
    assert {index for index, _ in held} == set(range(case.weights))
    assert all(value == pytest.approx(mean[index], rel=1e-6) for index, value in held)


def check_moments(recording: Recording) -> None:
    """After a first update: m = 0.1 g, v = 0.05 g^2, and w - 0.1 g / |g| where g is not 0."""
    assert recording["case"]["scenario"] == "moments"
    weights = BASE.first_weights()
    _, mean = by_hand(BASE, 0, weights)
    seen = set()
    for found in recording["batches"][0]["frames"][-1]["ranks"]:
        first, second = found["moments"]
        for index, gradient in enumerate(mean):
            assert (first[index] is None) == (second[index] is None)
            if first[index] is not None:
                assert first[index] == pytest.approx(0.1 * gradient, rel=1e-5)
                assert second[index] == pytest.approx(0.05 * gradient**2, rel=1e-5)
                seen.add(index)
            after = found["weights"][index]
            if after is not None:
                moved = LR * np.sign(gradient)
                assert after == pytest.approx(weights[index] - moved, rel=1e-5)
    assert seen == set(range(BASE.weights))


def check_update(recording: Recording) -> None:
    weights = BASE.first_weights()
    _, mean = by_hand(BASE, 0, weights)
    seen = set()
    for found in recording["batches"][0]["frames"][-1]["ranks"]:
        for index, after in enumerate(found["weights"]):
            if after is not None:
                assert after == pytest.approx(weights[index] - LR * mean[index], rel=1e-6)
                seen.add(index)
    assert seen == set(range(BASE.weights))
