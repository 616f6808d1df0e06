"""The charts of a sweep over link rates: step times, their crossing, and their ratio."""

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from benchmarks.charts import draw_spread, mode_legend, strategy_legend, style_of
from benchmarks.comparison import (
    BREAK_EVEN,
    PERCENT,
    Pair,
    crossing,
    link_rate,
    measured_points,
    predicted_points,
)
from benchmarks.figures import COLOURS, GREY, INK, LINES, RULE, Chart, Panel, plain_log_axis
from benchmarks.measured import describe, grouped, rounded, varied_fields
from benchmarks.record import Case

Points = Sequence[tuple[float, float]]


def time_chart(groups: Sequence[Sequence[Pair]], predicted_s: Mapping[Case, float]) -> Chart:
    """Draw step time against link rate, a panel for each strategy and setting."""
    pairs = [pair for group in groups for pair in group]
    by_setting = grouped(groups, lambda group: _title(group[0].case, pairs))
    cases = [m.case for pair in pairs for m in (pair.replicated, pair.sharded)]
    ends = [end for p in pairs for m in (p.replicated, p.sharded) for end in m.step_s]
    ends += [predicted_s[case] for case in cases if case in predicted_s]
    limits = (0.85 * min(ends, default=1), 1.15 * max(ends, default=1))
    return Chart(
        name="time",
        title="Step time against link rate",
        caption="Measured: points, medians of the repeats, with bars from the lowest to the "
        f"highest. {_predicted(pairs)} Upright lines mark the rate from which on sharded takes at "
        f"most {PERCENT} longer, if that lies between the rates measured.",
        panels=[
            Panel(
                _title(group[0].case, pairs, group[0].case.strategy),
                partial(_times, pairs=group, predicted_s=predicted_s, limits=limits),
            )
            for alike in by_setting
            for group in alike
        ],
        legend=[
            *mode_legend(cases),
            *_predicted_legend(pairs, color=GREY),
            Line2D(
                [],
                [],
                color=INK,
                marker="|",
                ms=9,
                lw=0,
                label=f"from here sharded is at most {PERCENT} slower",
            ),
        ],
    )


def _predicted(pairs: Sequence[Pair]) -> str:
    known = any(pair.predicted is not None for pair in pairs)
    return "Predicted: thin lines." if known else "Nothing is predicted: no machine profile."


def _predicted_legend(pairs: Sequence[Pair], **style: Any) -> list[Artist]:
    known = any(pair.predicted is not None for pair in pairs)
    return [Line2D([], [], lw=1, label="predicted", **style)] if known else []


def _title(case: Case, pairs: Sequence[Pair], *first: str) -> str:
    varied = varied_fields((pair.case for pair in pairs), without=["link_mbit_per_s"])
    return describe(case, varied, *first, f"A = {case.grad_accum_steps}")


def _times(
    axes: Axes,
    pairs: Sequence[Pair],
    predicted_s: Mapping[Case, float],
    limits: tuple[float, float],
) -> None:
    x = [link_rate(pair) for pair in pairs]
    for modes in ([p.replicated for p in pairs], [p.sharded for p in pairs]):
        case = modes[0].case
        known = [m.case for m in modes if m.case in predicted_s]
        across, up = [c.link_mbit_per_s or 0 for c in known], [predicted_s[c] for c in known]
        axes.plot(across, up, LINES[str(case.accumulation)], color=GREY, lw=1)
        draw_spread(axes, x, [m.step_s for m in modes], **style_of(case))
    axes.set(xlabel="link rate, Mbit/s", ylabel="seconds per step", ylim=limits)
    plain_log_axis(axes, "x", x)
    plain_log_axis(axes, "y")
    _mark_crossing(axes, measured_points(pairs), INK, height=0.97)
    _mark_crossing(axes, predicted_points(pairs), GREY, height=0.89)


def _mark_crossing(axes: Axes, points: Points, colour: str, *, height: float) -> None:
    rate = crossing(points, BREAK_EVEN).rate
    if rate is None:
        return
    axes.axvline(rate, color=colour, lw=0.9)
    where = axes.get_xaxis_transform()
    text = f" {rounded(rate)} Mbit/s "
    at_right = rate**2 > points[0][0] * points[-1][0]
    side = "right" if at_right else "left"
    axes.text(rate, height, text, ha=side, va="top", fontsize=7, color=colour, transform=where)


def ratio_chart(groups: Sequence[Sequence[Pair]]) -> Chart:
    """Draw sharded by replicated step time against link rate, strategies as lines."""
    pairs = [pair for group in groups for pair in group]
    ends = [end for pair in pairs for end in pair.ratio]
    limits = (0.9 * min(ends, default=1), 1.1 * max(ends, default=1))
    alike = grouped(groups, lambda group: _title(group[0].case, pairs))
    return Chart(
        name="ratio",
        title="Sharded by replicated step time against link rate",
        caption="Measured: points, medians of repeats that ran interleaved, with bars from the "
        f"lowest to the highest. {_predicted(pairs)} In the band the modes differ by at most "
        f"{PERCENT}; above it replicated is faster.",
        panels=[
            Panel(_title(some[0][0].case, pairs), partial(_ratios, groups=some, limits=limits))
            for some in alike
        ],
        legend=[
            *strategy_legend(pair.case for pair in pairs),
            Line2D([], [], color=INK, marker="s", label="measured"),
            *_predicted_legend(pairs, color=INK, ls=":"),
            Patch(color=RULE, label=f"within {PERCENT} of each other"),
        ],
    )


def _ratios(axes: Axes, groups: Sequence[Sequence[Pair]], limits: tuple[float, float]) -> None:
    axes.axhspan(1 / BREAK_EVEN, BREAK_EVEN, color=RULE, lw=0)
    for pairs in groups:
        colour = COLOURS[pairs[0].case.strategy]
        points = predicted_points(pairs)
        axes.plot([rate for rate, _ in points], [y for _, y in points], ":", color=colour, lw=1.2)
        x = [link_rate(pair) for pair in pairs]
        draw_spread(axes, x, [pair.ratio for pair in pairs], color=colour, marker="s")
    axes.set(xlabel="link rate, Mbit/s", ylabel="sharded / replicated", ylim=limits)
    plain_log_axis(axes, "x", sorted({link_rate(pair) for pairs in groups for pair in pairs}))
    plain_log_axis(axes, "y")
