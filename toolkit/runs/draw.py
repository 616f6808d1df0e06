"""The curves of runs as a picture, or as a page that zooms."""

from collections.abc import Sequence
from itertools import cycle
from pathlib import Path
from typing import Any

from toolkit.errors import UsageError
from toolkit.runs.curves import AXES, PANELS, Curve, Panel, curves_of
from toolkit.runs.record import Axis, RunRecord

# Okabe and Ito's palette, whose colours people with any colour vision can distinguish.
_COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
_COLUMNS = 2
_PAGE = ".html"

Drawn = list[tuple[Panel, list[tuple[Curve, str]]]]


def draw_runs(runs: Sequence[RunRecord], file: Path, *, axis: Axis) -> None:
    """Draw loss, gradient norm, learning rate, speed and memory, runs laid over each other.

    Args:
        runs: in the order of their colours.
        file: `.html` for a page that holds all it needs; else a picture in the ending's format.
        axis: what is to the right.

    Raises:
        UsageError: no run has a step yet, the file cannot be written, or plotly is not installed.
    """
    drawn = _drawn(runs, axis)
    if not drawn:
        raise UsageError(f"{runs[0].folder} has no step to draw yet")
    try:
        (_write_page if file.suffix == _PAGE else _write_picture)(drawn, file, axis, _title(runs))
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error).splitlines()[0]
        raise UsageError(f"--out {file}: {reason}") from None


def _drawn(runs: Sequence[RunRecord], axis: Axis) -> Drawn:
    drawn: Drawn = []
    for panel in PANELS:
        curves = [
            (curve, colour)
            for run, colour in zip(runs, cycle(_COLOURS), strict=False)
            for curve in curves_of(run, panel, axis)
        ]
        if curves:
            drawn.append((panel, curves))
    return drawn


def _title(runs: Sequence[RunRecord]) -> str:
    if len(runs) > 1:
        return f"{len(runs)} runs"
    launch = runs[0].launch
    where = f"{launch.get('strategy', '?')} on {launch.get('world_size', '?')}"
    return f"{runs[0].name}: {where}, accumulation {runs[0].config.get('accumulation', '?')}"


def _write_picture(drawn: Drawn, file: Path, axis: Axis, title: str) -> None:
    import matplotlib

    matplotlib.use("agg")
    from matplotlib.figure import Figure

    rows = -(-len(drawn) // _COLUMNS)
    figure = Figure(figsize=(12, 3.2 * rows), layout="constrained")
    figure.suptitle(title)
    for place, (panel, curves) in enumerate(drawn, 1):
        axes = figure.add_subplot(rows, _COLUMNS, place)
        for curve, colour in curves:
            style = "o--" if curve.is_validation else "-"
            axes.plot(
                curve.x, curve.y, style, color=colour, label=curve.name, linewidth=1, markersize=4
            )
        axes.set_title(panel.title, fontsize="medium")
        axes.set_xlabel(AXES[axis])
        if panel.is_log:
            axes.set_yscale("log")
        axes.grid(alpha=0.25)
        if place == 1 and len(curves) > 1:
            axes.legend(fontsize="small")
    figure.savefig(file, dpi=120)


def _write_page(drawn: Drawn, file: Path, axis: Axis, title: str) -> None:
    try:
        from plotly.subplots import make_subplots
    except ImportError:
        raise UsageError("a page needs plotly; `pip install plotly`, or name a .png") from None
    rows = -(-len(drawn) // _COLUMNS)
    figure: Any = make_subplots(
        rows=rows, cols=_COLUMNS, subplot_titles=[panel.title for panel, _ in drawn]
    )
    for place, (panel, curves) in enumerate(drawn):
        cell = {"row": place // _COLUMNS + 1, "col": place % _COLUMNS + 1}
        for curve, colour in curves:
            figure.add_scatter(
                x=curve.x,
                y=curve.y,
                name=curve.name,
                legendgroup=curve.name,
                showlegend=place == 0,
                mode="lines+markers" if curve.is_validation else "lines",
                line={"color": colour, "dash": "dash" if curve.is_validation else "solid"},
                **cell,
            )
        figure.update_xaxes(title_text=AXES[axis], matches="x", **cell)
        if panel.is_log:
            figure.update_yaxes(type="log", **cell)
    figure.update_yaxes(rangemode="nonnegative")  # around a constant it goes one down and one up
    figure.update_layout(title=title, height=340 * rows, template="plotly_white")
    figure.write_html(file, include_plotlyjs=True)
