"""Turns of two cases beside each other. Pure arithmetic.

Only turns of one round are compared, which lie seconds apart; the median and the quartiles are over
rounds.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import mean, median, quantiles

from benchmarks.overhead.turns import Turn

LOSS_TOLERANCE = 1e-4
"""Relative, of the mean loss of a turn. Rounding alone takes cases some 1e-6 apart in a hundred
steps; a learning rate that is a tenth too high takes them above 1e-3."""


@dataclass(frozen=True)
class Spread:
    """The median and the quartiles."""

    median: float
    low: float
    high: float


def spread(values: Iterable[float]) -> Spread:
    """Return the median and the quartiles of at least two values."""
    low, middle, high = quantiles(values, n=4, method="inclusive")
    return Spread(middle, low, high)


@dataclass(frozen=True)
class Comparison:
    """One case against another.

    Attributes:
        speed: its tokens/s as a multiple of the other's.
        overhead_us: microseconds per step, in the median of a turn, beyond the other's.
        cpu: processor time per step as a multiple of the other's, on rank 0. Other programs on the
            machine hardly change it.
    """

    speed: Spread
    overhead_us: Spread
    cpu: Spread


def compare(turns: Sequence[Turn], others: Sequence[Turn]) -> Comparison:
    """Compare a case with another, round by round; both took the same number of tokens a step."""
    rounds = list(zip(turns, others, strict=True))
    return Comparison(
        speed=spread(mean(other.step_s) / mean(own.step_s) for own, other in rounds),
        overhead_us=spread(
            1e6 * (median(own.step_s) - median(other.step_s)) for own, other in rounds
        ),
        cpu=spread(own.cpu_s / other.cpu_s for own, other in rounds),
    )


def largest_difference(turns: Sequence[Turn], others: Sequence[Turn]) -> float:
    """Return the largest relative difference of two cases' losses in one round."""
    return max(abs(own.loss / other.loss - 1) for own, other in zip(turns, others, strict=True))
