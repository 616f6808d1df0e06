"""How charts look, and how they become inline SVG and PNG."""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from html import escape
from io import StringIO
from pathlib import Path
from textwrap import fill
from typing import Any

import matplotlib
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, FuncFormatter, LogLocator, NullLocator

from toolkit.engines.strategies import Strategy

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
LINES = {"replicated": "-", "sharded": "--", "deferred": ":"}
MARKERS = {"replicated": "o", "sharded": "s", "deferred": "D"}
MIXED_LINE, MIXED_MARKER = "-.", "^"

PANEL_INCHES = (3.7, 2.9)
LEAST_PNG_INCHES = 5.9

_STYLE: Any = {
    "axes.axisbelow": True,
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
    """One pair of axes: `title` is what sets it apart from the others of its chart."""

    title: str
    draw: Callable[[Axes], None]


@dataclass(frozen=True)
class Chart:
    """A figure of the report.

    Attributes:
        name: of its PNG file and of its place in the page.
        title: what is shown.
        caption: what the marks mean; whether measured, predicted or counted.
        panels: none if the records hold nothing to draw it from.
        legend: a labelled artist for each mark.
    """

    name: str
    title: str
    caption: str
    panels: Sequence[Panel]
    legend: Sequence[Artist]

    @property
    def columns(self) -> int:
        """Panels side by side, so that no place in the grid stays empty where that can be."""
        count = len(self.panels)
        return min(count, next((n for n in (3, 2) if count % n == 0), 3))


def svgs_of(chart: Chart) -> list[str]:
    """Return each panel as an SVG element that follows the colours of the page it stands in."""
    found = []
    for number, panel in enumerate(chart.panels):
        written = StringIO()
        with matplotlib.rc_context(_STYLE):
            figure = _draw(chart, [panel], columns=1)
            figure.savefig(written, format="svg", metadata={"Date": None, "Creator": None})
        svg = written.getvalue()
        seen = f"{chart.title}: {panel.title}" if panel.title else chart.title
        found.append(_inlined(svg[svg.index("<svg") :], f"{chart.name}-{number}", seen))
    return found


def write_png(chart: Chart, path: Path, *, subtitle: str) -> None:
    """Write all panels of a chart that has some as one picture on white that explains itself."""
    width = max(PANEL_INCHES[0] * chart.columns, LEAST_PNG_INCHES)
    words = f"{subtitle}\n{fill(chart.caption, width=int(13 * width))}"
    with matplotlib.rc_context({**_STYLE, "savefig.transparent": False}):
        figure = _draw(chart, chart.panels, columns=chart.columns, least_width=LEAST_PNG_INCHES)
        figure.set_facecolor(PAPER)
        # A single artist, for which the layout makes room.
        figure.suptitle(f"{chart.title}\n{words}", x=0.01, ha="left", fontsize=8.5)
        figure.savefig(path, dpi=150, metadata={"Software": None})


def _draw(
    chart: Chart, panels: Sequence[Panel], *, columns: int, least_width: float = 0.0
) -> Figure:
    rows = -(-len(panels) // columns)
    per_row = 3 * columns if least_width else 2
    words_height = 0.22 * -(-len(chart.legend) // per_row) + (0.7 if least_width else 0.0)
    width, height = PANEL_INCHES[0] * columns, PANEL_INCHES[1] * rows + words_height
    figure = Figure(figsize=(max(width, least_width), height), layout="constrained")
    for index, panel in enumerate(panels, start=1):
        axes = figure.add_subplot(rows, columns, index)
        axes.set_title(panel.title, wrap=True)
        panel.draw(axes)
    handles = list(chart.legend)
    figure.legend(handles=handles, loc="outside lower left", ncols=per_row, fontsize=8)
    return figure


def _inlined(svg: str, name: str, seen: str) -> str:
    """Make ids unique within the page, colours variables, and name what is seen."""
    svg = re.sub(r'(\bid="|url\(#|href="#)', rf"\1{name}-", svg)
    svg = re.sub(r"<metadata>.*?</metadata>", "", svg, flags=re.DOTALL)
    for variable, colour in colour_variables():
        svg = svg.replace(colour, f"var({variable})")
    view_box = re.search(r'viewBox="[^"]*"', svg)
    assert view_box
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


def plain_log_axis(axes: Axes, which: str, ticks: Sequence[float] | None = None) -> None:
    """Make an axis logarithmic with numbers written out, at `ticks` or where they fit."""
    axis = {"x": axes.xaxis, "y": axes.yaxis}[which]
    (axes.set_xscale if which == "x" else axes.set_yscale)("log")
    low, high = axis.get_view_interval()
    subs = (1, 1.5, 2, 3, 5, 7) if high < 10 * low else (1, 2, 5)
    axis.set_major_locator(FixedLocator(ticks) if ticks else LogLocator(subs=subs, numticks=9))
    axis.set_minor_locator(NullLocator())
    axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,g}"))
