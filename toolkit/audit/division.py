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


Factors = list[tuple[int | None, np.ndarray]]
"""For each rank whose gradient is explained (None: for all together) the factors as [ranks,
micro-steps] float64."""


def fit_factors(steps: Sequence[dict[str, Any]], *, is_whole: bool) -> Factors | None:
    """Return the factors, or None if none explain the gradients.

    Args:
        steps: the same step of each rank, as the ranks wrote it.
        is_whole: every rank holds the whole gradient, so that rank 0's is enough.
    """
    own = [np.array(row, dtype=float) for step in steps for row in step["own"]]
    held = [np.array(step["applied"], dtype=float) for step in steps]
    counts = {len(step["own"]) for step in steps}
    if len(counts) != 1 or len({len(row) for row in [*own, *held]}) != 1 or not len(held[0]):
        return None
    columns = np.nan_to_num(np.stack(own, axis=1), posinf=0, neginf=0)
    if is_whole:
        fits: Factors = [(0, held[0])]
    elif all(_is_enough(part, columns) for part in held):
        fits = list(enumerate(held))
    else:
        whole = held[0]
        for other in held[1:]:
            whole = np.where(np.isnan(whole), other, whole)
        fits = [(None, whole)]
    found = [(holder, _fit(columns, applied)) for holder, applied in fits]
    shape = (len(steps), -1)
    complete = [(holder, fit.reshape(shape)) for holder, fit in found if fit is not None]
    return complete if len(complete) == len(found) else None


def _is_enough(applied: np.ndarray, columns: np.ndarray) -> bool:
    return bool((~np.isnan(applied)).sum() >= 2 * columns.shape[1])


def _fit(columns: np.ndarray, applied: np.ndarray) -> np.ndarray | None:
    known = ~np.isnan(applied)
    if not _is_enough(applied, columns) or not np.abs(applied[known]).any():
        return None
    factors, *_ = np.linalg.lstsq(columns[known], applied[known], rcond=1e-6)
    left = np.linalg.norm(columns[known] @ factors - applied[known])
    return factors if left <= TOLERANCE * np.linalg.norm(applied[known]) else None


def describe_division(fits: Factors | None, world_size: int, clipped: bool) -> str:
    """Return "averaged", "summed", "averaged twice", "not reduced", "lost K" or "unknown".

    Args:
        fits: of `fit_factors`.
        world_size: ranks.
        clipped: whether the gradient was seen after its clipping alone, which scales it.
    """
    if fits is None:
        return "unknown"
    factors = np.stack([fit for _, fit in fits])
    most = np.abs(factors).max()
    if most == 0:
        return "unknown"
    lost = _lost(fits, TOLERANCE * most)
    if lost.any():
        is_alone = lost.all() and world_size > 1
        return "not reduced" if is_alone else f"lost {int(np.argmax(lost)) + 1}"
    if clipped:
        return "unknown" if np.ptp(factors) > TOLERANCE * most else "averaged"
    known = {1 / world_size: "averaged", 1.0: "summed", 1 / world_size**2: "averaged twice"}
    for factor, word in known.items():
        if np.allclose(factors, factor, rtol=TOLERANCE, atol=0):
            return "averaged" if world_size == 1 else word
    return "unequal" if np.ptp(factors) > TOLERANCE * most else f"multiplied by {most:.3g}"


def _lost(fits: Factors, small: float) -> np.ndarray:
    """Return of each micro-step whether it reaches no rank, or none but the one it is from."""
    found = np.ones(fits[0][1].shape[1], dtype=bool)
    for holder, factors in fits:
        others = factors if holder is None else np.delete(factors, holder, axis=0)
        found &= np.all(np.abs(others if len(others) else factors) < small, axis=0)
    return found
