"""Turns of two loops beside each other. Pure arithmetic.

Only turns of one round are compared, which lie seconds apart; the median and the quartiles are over
rounds.
"""

from collections.abc import Sequence
from statistics import mean, median

from benchmarks.measured import Spread
from benchmarks.overhead.turns import Turn

LOSS_TOLERANCE = 1e-4
"""Relative, of the mean loss of a turn. Rounding alone takes loops some 1e-6 apart in a hundred
steps; a learning rate that is a tenth too high takes them above 1e-3."""


def compare(turns: Sequence[Turn], others: Sequence[Turn]) -> dict[str, Spread]:
    """Compare a loop with another, round by round; both took the same number of tokens a step.

    Returns:
        `speed`: its tokens/s as a multiple of the other's. `overhead_us`: microseconds per step, in
        the median of a turn, beyond the other's. `cpu`: processor time per step as a multiple of
        the other's, on rank 0, which other programs on the machine hardly change.
    """
    rounds = list(zip(turns, others, strict=True))
    return {
        "speed": Spread.quartiles(mean(other.step_s) / mean(own.step_s) for own, other in rounds),
        "overhead_us": Spread.quartiles(
            1e6 * (median(own.step_s) - median(other.step_s)) for own, other in rounds
        ),
        "cpu": Spread.quartiles(own.cpu_s / other.cpu_s for own, other in rounds),
    }


def largest_difference(turns: Sequence[Turn], others: Sequence[Turn]) -> float:
    """Return the largest relative difference of two loops' losses in one round."""
    return max(abs(own.loss / other.loss - 1) for own, other in zip(turns, others, strict=True))
