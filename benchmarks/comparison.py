"""Sharded against replicated: measured and predicted ratios of step times, and where they cross."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from benchmarks.measured import Measured, Spread, grouped, rounded, step_seconds
from benchmarks.record import Case
from toolkit.engines.strategies import Accumulation

TOLERANCE = 0.10
"""How far a predicted ratio may be off, and modes may differ and still count as equally fast."""
PERCENT = f"{100 * TOLERANCE:.0f} %"
BREAK_EVEN = 1 + TOLERANCE
"""Sharded by replicated step time from which on replicated counts as faster."""


@dataclass(frozen=True)
class Pair:
    """One case in both modes; `predicted` is the predicted ratio, None without a prediction."""

    replicated: Measured
    sharded: Measured
    predicted: float | None

    @property
    def case(self) -> Case:
        """The sharded case."""
        return self.sharded.case

    @property
    def ratio(self) -> Spread:
        """Sharded by replicated step time, of repeats that were interleaved with each other."""
        beside = {record.repeat: step_seconds(record) for record in self.replicated.records}
        common = [record for record in self.sharded.records if record.repeat in beside]
        if not common:
            return Spread.over([self.sharded.step_s.median / self.replicated.step_s.median])
        return Spread.over([step_seconds(record) / beside[record.repeat] for record in common])

    @property
    def error(self) -> float | None:
        """Predicted ratio relative to the measured one, minus 1."""
        return None if self.predicted is None else self.predicted / self.ratio.median - 1

    @property
    def within(self) -> bool | None:
        """Whether the prediction is within the tolerance."""
        return None if self.error is None else abs(self.error) <= TOLERANCE

    @property
    def faster(self) -> Accumulation | None:
        """The mode that is faster by more than the tolerance, None if neither is."""
        if self.ratio.median > BREAK_EVEN:
            return "replicated"
        return "sharded" if self.ratio.median < 1 / BREAK_EVEN else None

    @property
    def named_right(self) -> bool | None:
        """Whether the faster mode is predicted; None where neither is faster."""
        if self.predicted is None or self.faster is None:
            return None
        return (self.predicted > 1) == (self.faster == "replicated")


def pairs_of(cases: Iterable[Measured], predicted_s: Mapping[Case, float]) -> list[Pair]:
    """Return the cases that were measured in both modes.

    A single micro-step is not compared: both modes are the same program there.

    Args:
        cases: what was measured.
        predicted_s: predicted seconds per step; cases may be missing.
    """
    listed = [measured for measured in cases if measured.case.grad_accum_steps > 1]
    replicated = {m.case: m for m in listed if m.case.accumulation == "replicated"}
    pairs = []
    for sharded in (m for m in listed if m.case.accumulation == "sharded"):
        twin = sharded.case.model_copy(update={"accumulation": "replicated"})
        if twin in replicated:
            known = sharded.case in predicted_s and twin in predicted_s
            ratio = predicted_s[sharded.case] / predicted_s[twin] if known else None
            pairs.append(Pair(replicated[twin], sharded, ratio))
    return pairs


@dataclass(frozen=True)
class Crossing:
    """From which link rate on a ratio is low enough; `rate` is None if no rate divides them."""

    rate: float | None
    words: str


def crossing(points: Sequence[tuple[float, float]], level: float) -> Crossing:
    """Return the link rate from which on the ratio is no more than `level`.

    Args:
        points: link rate in Mbit/s and sharded by replicated step time, rates rising.
        level: 1 where both take equally long.
    """
    if not points:
        return Crossing(None, "-")
    above = [i for i, (_, ratio) in enumerate(points) if ratio > level]
    if not above:
        return Crossing(None, "at every rate")
    if above[-1] == len(points) - 1:
        return Crossing(None, f"not up to {rounded(points[-1][0])} Mbit/s")
    (rate, ratio), (next_rate, next_ratio) = points[above[-1] : above[-1] + 2]
    # Straight between neighbours on the logarithmic axes of the chart.
    share = math.log(ratio / level) / math.log(ratio / next_ratio)
    found = rate * (next_rate / rate) ** share
    return Crossing(found, f"{rounded(found)} Mbit/s")


def over_links(pairs: Iterable[Pair]) -> list[list[Pair]]:
    """Return the pairs that differ in the link alone, by rising rate, if there are two or more."""
    linked = [pair for pair in pairs if pair.case.link_mbit_per_s is not None]
    groups = grouped(linked, lambda pair: pair.case.model_copy(update={"link_mbit_per_s": None}))
    return [sorted(group, key=link_rate) for group in groups if len(group) > 1]


def link_rate(pair: Pair) -> float:
    """Return the rate of a throttled link in Mbit/s."""
    assert pair.case.link_mbit_per_s
    return pair.case.link_mbit_per_s


def measured_points(pairs: Sequence[Pair]) -> list[tuple[float, float]]:
    """Return link rates and measured ratios."""
    return [(link_rate(pair), pair.ratio.median) for pair in pairs]


def predicted_points(pairs: Sequence[Pair]) -> list[tuple[float, float]]:
    """Return link rates and predicted ratios, of those that are predicted."""
    return [(link_rate(pair), pair.predicted) for pair in pairs if pair.predicted is not None]
