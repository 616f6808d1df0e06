"""How charts look, and how they become inline SVG and PNG."""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from html import escape
from io import StringIO
from itertools import pairwise
from pathlib import Path
from textwrap import fill
from typing import TYPE_CHECKING, Any

from toolkit.engines.strategies import Accumulation, Strategy

if TYPE_CHECKING:
    from matplotlib.axes import Axes

INK, GREY, RULE, PAPER = "#1b1c1e", "#6f7073", "#d9d9d6", "#ffffff"
DARK_INK, DARK_GREY, DARK_RULE, DARK_PAPER = "#e8e8e6", "#9a9b9e", "#3d4045", "#15171a"

# Found by search: at least 3:1 against the paper, and at least 23 (CIE 1976 colour difference)
# apart from each other as seen with normal sight, protanopia, deuteranopia and tritanopia after
# Machado, Oliveira and Fernandes 2009, "A Physiologically-based Model for Simulation of Color
# Vision Deficiency".
COLOURS: dict[Strategy, str] = {
    "single": "#8f8f8f",
    "ddp": "#1442df",
    "fsdp2": "#d26a16",
    "fsdp2_no_reshard": "#7d3d00",
    "hsdp": "#905898",
    "zero1": "#1994f2",
    "zero2": "#0e4936",
    "zero3": "#471179",
}
DARK_COLOURS: dict[Strategy, str] = {
    "single": "#b5b5b5",
    "ddp": "#57cbff",
    "fsdp2": "#f56f34",
    "fsdp2_no_reshard": "#ffd751",
    "hsdp": "#c270b5",
    "zero1": "#d8ffff",
    "zero2": "#4f8260",
    "zero3": "#8d6df5",
}
LINES: dict[Accumulation, str] = {"replicated": "-", "sharded": "--", "deferred": ":"}
MARKERS: dict[Accumulation, str] = {"replicated": "o", "sharded": "s", "deferred": "D"}

PANEL_INCHES = (3.7, 2.9)

_STYLE: Any = {
    "axes.edgecolor": INK,
    "axes.grid": True,
    "axes.labelcolor": INK,
    "axes.linewidth": 0.6,
    "axes.spines.right": False,
    "axes.spines.top": False,
    "axes.titlelocation": "left",
    "axes.titlesize": 9,
    "font.family": ["DejaVu Sans"],
    "font.size": 8,
    "grid.color": RULE,
    "grid.linewidth": 0.5,
    "legend.frameon": False,
    "lines.linewidth": 1.5,
    "lines.markersize": 4.5,
    "savefig.transparent": True,
    "svg.fonttype": "none",
    "svg.hashsalt": "report",
    "text.color": INK,
    "xtick.color": INK,
    "ytick.color": INK,
}


@dataclass(frozen=True)
class Panel:
    """One pair of axes: `title` says what sets it apart from the others of its chart."""

    title: str
    draw: Callable[["Axes"], None]


@dataclass(frozen=True)
class Chart:
    """A figure of the report.

    Attributes:
        name: of its PNG file and of its place in the page.
        title: what is shown.
        caption: what the marks mean; whether measured, predicted or counted.
        panels: none if the records hold nothing to draw it from.
        absent: why, in that case.
        columns: panels side by side, where there is room.
    """

    name: str
    title: str
    caption: str
    panels: Sequence[Panel]
    absent: str
    columns: int = 3


def svg_of(chart: Chart, number: int) -> str:
    """Return a panel as an SVG element that follows the colours of the page it stands in."""
    import matplotlib
    from matplotlib.figure import Figure

    panel = chart.panels[number]
    written = StringIO()
    with matplotlib.rc_context(_STYLE):
        figure = Figure(figsize=PANEL_INCHES, layout="constrained")
        _draw(panel, figure.add_subplot())
        figure.savefig(written, format="svg", metadata={"Date": None, "Creator": None})
    svg = written.getvalue()
    return _inlined(svg[svg.index("<svg") :], f"{chart.name}-{number}", chart, panel)


def write_png(chart: Chart, path: Path, *, footer: str) -> None:
    """Write all panels of a chart that has some as one picture on white, with a line below."""
    import matplotlib
    from matplotlib.figure import Figure

    columns = min(chart.columns, len(chart.panels))
    rows = -(-len(chart.panels) // columns)
    with matplotlib.rc_context({**_STYLE, "savefig.transparent": False}):
        size = (PANEL_INCHES[0] * columns, PANEL_INCHES[1] * rows + 0.6)
        figure = Figure(figsize=size, layout="constrained", facecolor=PAPER)
        figure.suptitle(chart.title, fontsize=11, x=0.01, ha="left", wrap=True)
        figure.supxlabel(footer, fontsize=7, x=0.01, ha="left")
        for index, panel in enumerate(chart.panels, start=1):
            _draw(panel, figure.add_subplot(rows, columns, index))
        figure.savefig(path, dpi=150, metadata={"Software": None})


def _draw(panel: Panel, axes: "Axes") -> None:
    axes.set_title(fill(panel.title, width=40))
    axes.set_axisbelow(True)
    panel.draw(axes)


def _inlined(svg: str, name: str, chart: Chart, panel: Panel) -> str:
    """Make ids unique within the page, colours variables, and say what is seen."""
    svg = re.sub(r'(\bid="|url\(#|href="#)', rf"\1{name}-", svg)
    svg = re.sub(r"<metadata>.*?</metadata>", "", svg, flags=re.DOTALL)
    for variable, colour in colour_variables():
        svg = svg.replace(colour, f"var({variable})")
    view_box = re.search(r'viewBox="[^"]*"', svg)
    assert view_box
    seen = f"{chart.title}: {panel.title}" if panel.title else chart.title
    opened = (
        f'<svg xmlns="http://www.w3.org/2000/svg" xmlns:xlink="http://www.w3.org/1999/xlink" '
        f'{view_box[0]} role="img" aria-labelledby="{name}-title">'
        f'<title id="{name}-title">{escape(seen)}</title>'
    )
    return re.sub(r"<svg[^>]*>", lambda _: opened, svg, count=1)


def colour_variables(*, dark: bool = False) -> list[tuple[str, str]]:
    """Return the names of the page's colour variables and their values on light or dark paper."""
    names = ("--ink", "--grey", "--rule", "--paper")
    plain = (DARK_INK, DARK_GREY, DARK_RULE, DARK_PAPER) if dark else (INK, GREY, RULE, PAPER)
    named = list(zip(names, plain, strict=True))
    strategies = DARK_COLOURS if dark else COLOURS
    return named + [(f"--{strategy}", colour) for strategy, colour in strategies.items()]


def plain_log_axis(axes: "Axes", which: str, ticks: Sequence[float] | None = None) -> None:
    """Make an axis logarithmic with numbers written out, at `ticks` or where they fit."""
    from matplotlib.ticker import FixedLocator, FuncFormatter, LogLocator, NullLocator

    axis = {"x": axes.xaxis, "y": axes.yaxis}[which]
    (axes.set_xscale if which == "x" else axes.set_yscale)("log")
    low, high = axis.get_view_interval()
    subs = (1, 1.5, 2, 3, 5, 7) if high < 10 * low else (1, 2, 5)
    axis.set_major_locator(FixedLocator(ticks) if ticks else LogLocator(subs=subs, numticks=9))
    axis.set_minor_locator(NullLocator())
    axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,g}"))


def label_ends(axes: "Axes", ends: Sequence[tuple[float, float, str, str]]) -> None:
    """Write labels right of the axes at the height of their ends, moved apart where they touch.

    Args:
        axes: with limits and scales that won't change any more.
        ends: x, y, text and colour of the line that leads from the end to the label.
    """
    axes.autoscale_view()
    to_axes = axes.transData + axes.transAxes.inverted()
    heights = [float(to_axes.transform((x, y))[1]) for x, y, _, _ in ends]
    leader = {"arrowstyle": "-", "ls": ":", "lw": 0.8, "relpos": (0, 0.5), "shrinkB": 3}
    for (x, y, text, colour), height in zip(ends, apart(heights, gap=0.085), strict=True):
        axes.annotate(
            text,
            (x, y),
            (1.03, height),
            textcoords="axes fraction",
            va="center",
            fontsize=7.5,
            annotation_clip=False,
            arrowprops=leader | {"color": colour},
        )


def apart(heights: Sequence[float], gap: float) -> list[float]:
    """Return heights in the same order, at least `gap` apart if that fits, all from 0 to 1."""
    if len(heights) < 2:
        return list(heights)
    gap = min(gap, 1 / (len(heights) - 1))
    order = sorted(range(len(heights)), key=lambda i: heights[i])
    moved = list(heights)
    for lower, upper in pairwise(order):
        moved[upper] = max(moved[upper], moved[lower] + gap)
    # As a whole they stay where they were, or as near as the axes let them.
    drift = sum(moved) / len(moved) - sum(heights) / len(heights)
    drift = min(max(drift, moved[order[-1]] - 1), moved[order[0]])
    return [height - drift for height in moved]
