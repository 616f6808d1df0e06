"""An answer as lines of text."""

from collections.abc import Iterator

from toolkit.batching import BatchPlan
from toolkit.memory.hardware import in_gib
from toolkit.planning.answer import Answer, PlanRow, changes
from toolkit.planning.cost import describe_run, span
from toolkit.planning.reason import describe, describe_change, milliseconds, reason_for

SHOWN = 5
"""Rows of the fastest, whatever their strategy."""
_HEADINGS = ("ms a step", "tokens/s", "MFU", "GiB", "")


def report(answer: Answer, train_tokens: int | None) -> Iterator[str]:
    """Yield the answer: the fastest, each strategy's best, why, what would change it, the run."""
    yield f"{answer.size:,} configurations of {answer.cluster.describe()}"
    for reason in answer.skipped:
        yield f"not timed: {reason}"
    best = answer.best
    if best is None:
        yield "the least memory of each strategy; none fits"
        yield from _table(answer.best_per_strategy())
        return
    yield "the fastest that fit"
    yield from _table([row for row in answer.rows if row.fits][:SHOWN])
    yield "each strategy's best"
    yield from _table(answer.best_per_strategy())
    yield f"best: {_product(best)}"
    yield f"why: {reason_for(answer)}"
    for change in changes(answer):
        yield describe_change(change, best)
    if train_tokens is not None:
        yield describe_run(best, train_tokens)
    if not best.is_calibrated:
        yield f"ranges, since {best.timing.beyond}"


def _table(rows: list[PlanRow]) -> Iterator[str]:
    cells = [_HEADINGS, *map(_cells, rows)]
    widths = [max(len(row[i]) for row in cells) for i in range(len(_HEADINGS) - 1)]
    for row in cells:
        figures = "  ".join(cell.rjust(width) for cell, width in zip(row[:-1], widths, strict=True))
        yield f"  {figures}  {row[-1]}".rstrip()


def _cells(row: PlanRow) -> tuple[str, ...]:
    low, high = row.step_s
    rates = [row.tokens_per_step / high, row.tokens_per_step / low]
    use = [f"{100 * row.mfu(high):.0f}", f"{100 * row.mfu(low):.0f}"]
    return (
        milliseconds(row.step_s).removesuffix(" ms"),
        span(rates),
        " to ".join(dict.fromkeys(use)) + " %",
        in_gib(row.peak),
        describe(row) + ("" if row.fits else "  does not fit"),
    )


def _product(row: PlanRow) -> str:
    step = row.settings
    return BatchPlan(
        tokens_per_step=row.tokens_per_step,
        seq_len=step.seq_len,
        micro_batch_size=step.micro_batch_size,
        world_size=step.world_size,
    ).describe()
