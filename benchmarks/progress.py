"""What a sweep says while it goes on: a line for each record, a bar, and the time left."""

import time
from collections import defaultdict
from collections.abc import Mapping
from statistics import mean, median
from types import TracebackType

from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

from benchmarks.record import Case, Record


class TimeLeft:
    """Estimates the time left from repeats measured already.

    A repeat is taken to last as long as those with as many micro-steps did on average, or as all
    did where there is none yet; starting processes is part of it.
    """

    def __init__(self, repeats: Mapping[Case, int]) -> None:
        self.repeats = dict(repeats)
        self.took: dict[int, list[float]] = defaultdict(list)

    def count(self, record: Record, seconds: float) -> None:
        """Take note of a record and the seconds since the one before."""
        case = record.case
        self.repeats[case] = 0 if record.error or record.skipped else self.repeats[case] - 1
        self.took[case.grad_accum_steps].append(seconds)

    def seconds(self) -> float:
        """Return the time left; something must have been counted."""
        overall = mean(seconds for some in self.took.values() for seconds in some)
        return sum(
            repeats * (mean(self.took[case.grad_accum_steps] or [overall]))
            for case, repeats in self.repeats.items()
        )


class SweepProgress:
    """Prints records as they come; on a terminal also a bar.

    Args:
        repeats: still to be measured, by case.
    """

    def __init__(self, repeats: Mapping[Case, int]) -> None:
        self.left = TimeLeft(repeats)
        self.bar = Progress(BarColumn(), MofNCompleteColumn(), TextColumn("{task.description}"))
        self.task = self.bar.add_task("", total=sum(repeats.values()))
        self.last = time.monotonic()

    def __enter__(self) -> "SweepProgress":
        self.bar.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.bar.stop()

    def show(self, record: Record) -> None:
        """Print a record's line."""
        now = time.monotonic()
        self.left.count(record, now - self.last)
        self.last = now
        left = _minutes(self.left.seconds())
        remaining = sum(self.left.repeats.values())
        total = self.bar.tasks[0].total or 0
        self.bar.update(self.task, completed=total - remaining, description=left)
        self.bar.console.print(f"{describe(record)} | {left}", highlight=False, soft_wrap=True)


def describe(record: Record) -> str:
    """Return a record's line."""
    if record.error:
        return f"{record.case.label} | failed: {record.error}"
    if record.skipped:
        return f"{record.case.label} | skipped: {record.skipped}"
    assert record.step_s is not None
    assert record.tokens_per_s is not None
    spread = (max(record.step_s) - min(record.step_s)) / median(record.step_s)
    mfu = "" if record.mfu is None else f" | mfu {record.mfu:.1%}"
    return (
        f"{record.case.label} | repeat {record.repeat} | {median(record.step_s) * 1e3:.1f} ms a "
        f"step, within {spread:.0%} over {len(record.step_s)} | "
        f"{record.tokens_per_s:,.0f} tokens/s{mfu}"
    )


def _minutes(seconds: float) -> str:
    return f"{seconds / 60:.1f} min left"
