"""Least squares with no term negative, for a handful of terms."""

from itertools import combinations

import numpy as np
from numpy.typing import NDArray


def nonnegative(terms: NDArray[np.float64], values: NDArray[np.float64]) -> list[float]:
    """Return the factors of the terms, none negative, whose sums come closest to the values.

    Of all sets of terms the one that fits best without a negative one; handfuls are few enough to
    try them all.

    Args:
        terms: [values, terms].
        values: [values].
    """
    count = terms.shape[1]
    scale = np.maximum(np.abs(terms).max(axis=0), np.finfo(float).tiny)
    best, least = np.zeros(count), float(np.square(values).sum())
    for size in range(1, count + 1):
        for columns in map(list, combinations(range(count), size)):
            found, *_ = np.linalg.lstsq(terms[:, columns] / scale[columns], values)
            tried = np.zeros(count)
            tried[columns] = found
            error = float(np.square(terms / scale @ tried - values).sum())
            if (found >= 0).all() and error < least:
                best, least = tried, error
    return [float(factor) for factor in best / scale]
