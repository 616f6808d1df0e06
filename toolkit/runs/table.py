"""All runs below a folder, a line each."""

from collections.abc import Iterable, Sequence

from toolkit.runs.record import RunRecord

_HEAD = ("run", "state", "step", "loss", "validation", "tokens/s", "strategy", "mode")
_NUMBERS = {"step", "loss", "validation", "tokens/s"}


def describe_runs(runs: Iterable[RunRecord]) -> list[str]:
    """Return the lines of a table, its head first."""
    rows = [_HEAD, *map(_row, runs)]
    widths = [max(len(row[column]) for row in rows) for column in range(len(_HEAD))]
    return [_line(row, widths) for row in rows]


def _row(run: RunRecord) -> tuple[str, ...]:
    last = run.train[-1] if run.train else None
    rate = run.tokens_per_s
    ranks = run.launch.get("world_size")
    return (
        str(run.folder),
        run.state,
        f"{last['step'] if last else 0}/{run.steps or '?'}",
        f"{last['loss']:.3f}" if last else "-",
        f"{run.evaluations[-1]['loss']:.3f}" if run.evaluations else "-",
        f"{rate:,.0f}" if rate else "-",
        f"{run.launch.get('strategy', '-')}{f' on {ranks}' if ranks else ''}",
        str(run.config.get("accumulation", "-")),
    )


def _line(row: Sequence[str], widths: Sequence[int]) -> str:
    cells = [
        text.rjust(width) if name in _NUMBERS else text.ljust(width)
        for name, text, width in zip(_HEAD, row, widths, strict=True)
    ]
    return "  ".join(cells).rstrip()
