"""What stands between the ranks' own gradients and the one that is applied.

The applied gradient is fitted as a sum of every rank's own gradient of every micro-step, each with
a factor: 1/world_size where they are averaged, 1 where they are summed, 1/world_size^2 where they
are averaged twice, 0 where one is lost.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np

TOLERANCE = 0.05
"""Relative; bf16 rounds single elements by 0.4 %, and factors of interest are 2 apart or more."""


def fit_factors(steps: Sequence[dict[str, Any]], *, observer: int | None) -> np.ndarray | None:
    """Return the factors as [ranks, micro-steps] float64, or None if no factors explain it.

    Args:
        steps: the same step of each rank, as the ranks wrote it.
        observer: the rank whose applied gradient is explained; None: each element by a rank that
            has it, for gradients that are sharded.
    """
    own = [np.array(row, dtype=float) for step in steps for row in step["own"]]
    held = [np.array(step["applied"], dtype=float) for step in steps]
    held = held if observer is None else [held[observer]]
    counts = {len(step["own"]) for step in steps}
    if len(counts) != 1 or len({len(row) for row in [*own, *held]}) != 1 or not len(held[0]):
        return None
    applied = held[0]
    for other in held[1:]:
        applied = np.where(np.isnan(applied), other, applied)
    columns = np.nan_to_num(np.stack(own, axis=1))
    known = ~np.isnan(applied)
    scale = np.abs(applied[known]).max(initial=0.0)
    if known.sum() < 2 * columns.shape[1] or scale == 0:
        return None
    factors, *_ = np.linalg.lstsq(columns[known], applied[known], rcond=1e-6)
    left = np.linalg.norm(columns[known] @ factors - applied[known])
    if left > TOLERANCE * np.linalg.norm(applied[known]):
        return None
    return factors.reshape(len(steps), -1)


def describe_division(factors: np.ndarray | None, world_size: int, clipped: bool) -> str:
    """Return "averaged", "summed", "averaged twice", "not reduced", "lost K" or "unknown".

    Args:
        factors: of `fit_factors`.
        world_size: ranks.
        clipped: whether the gradient was seen after its clipping alone, which scales it.
    """
    if factors is None:
        return "unknown"
    most = np.abs(factors).max()
    lost = np.all(np.abs(factors) < TOLERANCE * most, axis=0)
    if lost.any():
        return f"lost {int(np.argmax(lost)) + 1}"
    if world_size > 1 and np.all(np.abs(factors[1:]) < TOLERANCE * most):
        return "not reduced"
    if clipped:
        return "unknown" if np.ptp(factors) > TOLERANCE * most else "averaged"
    known = {1 / world_size: "averaged", 1.0: "summed", 1 / world_size**2: "averaged twice"}
    for factor, word in known.items():
        if np.allclose(factors, factor, rtol=TOLERANCE, atol=0):
            return "averaged" if world_size == 1 else word
    return "unequal" if np.ptp(factors) > TOLERANCE * most else f"multiplied by {most:.3g}"
