"""What a sweep prints while it runs: a line for each record, a bar, and the time left."""

from collections.abc import Iterable, Iterator, Mapping

from rich.progress import BarColumn, Progress, TimeRemainingColumn

from benchmarks.measured import Spread
from benchmarks.record import Case, Record


def show(records: Iterable[Record], repeats: Mapping[Case, int]) -> Iterator[Record]:
    """Yield records and print a line for each as it comes; on a terminal also a bar.

    A repeat is taken to last as long as it has micro-steps.

    Args:
        records: one for each repeat, or one for a case that failed or is skipped.
        repeats: still to be measured, by case.
    """
    left = {case: count * case.grad_accum_steps for case, count in repeats.items()}
    with Progress(BarColumn(), TimeRemainingColumn(), speed_estimate_period=1e6) as progress:
        bar = progress.add_task("", total=sum(left.values()))
        for record in records:
            case = record.case
            done = left[case] if record.error or record.skipped else case.grad_accum_steps
            left[case] -= done
            progress.advance(bar, done)
            remaining = progress.tasks[0].time_remaining
            words = "" if remaining is None else f" | {remaining / 60:.1f} min left"
            progress.console.print(f"{describe(record)}{words}", highlight=False, soft_wrap=True)
            yield record


def describe(record: Record) -> str:
    """Return a record's line."""
    if record.error or record.skipped:
        reason = f"failed: {record.error}" if record.error else f"skipped: {record.skipped}"
        return f"{record.case.label} | {reason}"
    assert record.step_s is not None
    assert record.tokens_per_s is not None
    spread = Spread.over(record.step_s)
    mfu = "" if record.mfu is None else f" | mfu {record.mfu:.1%}"
    return (
        f"{record.case.label} | repeat {record.repeat} | {spread.median * 1e3:.1f} ms a step, "
        f"within {(spread.high - spread.low) / spread.median:.0%} over {len(record.step_s)} | "
        f"{record.tokens_per_s:,.0f} tokens/s{mfu}"
    )
