"""What a sweep's records show as a whole."""

from collections import Counter
from collections.abc import Iterable, Sequence

from benchmarks.comparison import PERCENT, Pair
from benchmarks.measured import Measured, counts_agree, gradients_agree
from benchmarks.record import Record


def findings(
    records: Sequence[Record], cases: Sequence[Measured], pairs: Sequence[Pair]
) -> list[str]:
    """Return what the records show, in sentences."""
    good = [record for measured in cases for record in measured.records]
    skipped = sum(record.skipped is not None for record in records)
    failed = len(records) - len(good) - skipped
    found = [
        f"{len(cases)} cases were measured, {len(good)} repeats in all; failed: {failed}, "
        f"skipped: {skipped}.",
        f"Collectives and bytes counted are what the formulas give in "
        f"{share(map(counts_agree, good))} repeats, gradient bytes held in "
        f"{share(map(gradients_agree, good))}.",
    ]
    if pairs:
        faster = Counter(pair.faster for pair in pairs)
        found.append(
            f"Of {len(pairs)} pairs of cases that differ in the mode alone, replicated was more "
            f"than {PERCENT} faster in {faster['replicated']}, sharded in "
            f"{faster['sharded']}; in {faster[None]} they are closer than that."
        )
    within = [pair.within for pair in pairs if pair.within is not None]
    if within:
        named = [pair.named_right for pair in pairs if pair.named_right is not None]
        found.append(
            f"The predicted ratio of their step times is within {PERCENT} of the measured "
            f"one in {share(within)}, and the faster mode is named right in {share(named)} where "
            "one is faster."
        )
    return found


def share(judged: Iterable[bool]) -> str:
    """Return how many of how many, `38 of 40 (95 %)`."""
    listed = list(judged)
    percent = f" ({100 * sum(listed) / len(listed):.0f} %)" if listed else ""
    return f"{sum(listed)} of {len(listed)}{percent}"
