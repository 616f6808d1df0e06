"""The charts of a sweep over link rates: step times, their crossing, and their ratio."""

from collections.abc import Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING

from benchmarks.charts import draw_spread, style_of
from benchmarks.comparison import (
    BREAK_EVEN,
    PERCENT,
    Pair,
    crossing,
    link_rate,
    measured_points,
    predicted_points,
)
from benchmarks.figures import (
    COLOURS,
    GREY,
    INK,
    LINES,
    PAPER,
    RULE,
    Chart,
    Panel,
    label_ends,
    plain_log_axis,
)
from benchmarks.measured import describe, grouped, listed, rounded, varied_fields
from benchmarks.record import Case

if TYPE_CHECKING:
    from matplotlib.axes import Axes


def time_chart(groups: Sequence[Sequence[Pair]], predicted_s: Mapping[Case, float]) -> Chart:
    """Draw step time against link rate, a panel for each strategy and setting."""
    varied = _varied(groups)
    return Chart(
        name="time",
        title="Step time against link rate",
        caption="Measured: points, medians of the repeats, with bars from the lowest to the "
        f"highest. {_predicted(groups, 'thin grey lines')} Upright lines "
        f"mark the rate from which on sharded takes at most {PERCENT} longer, if that lies "
        "between the rates measured.",
        panels=[
            Panel(
                _title(group[0].case, varied, with_strategy=True),
                partial(_times, pairs=group, predicted_s=predicted_s),
            )
            for group in groups
        ],
        absent="No pair of cases was measured at more than one link rate.",
    )


def _predicted(groups: Sequence[Sequence[Pair]], how: str) -> str:
    known = any(pair.predicted is not None for group in groups for pair in group)
    return f"Predicted: {how}." if known else "Nothing is predicted: there is no machine profile."


def _varied(groups: Sequence[Sequence[Pair]]) -> list[str]:
    fields = varied_fields(pair.case for group in groups for pair in group)
    return [name for name in fields if name != "link_mbit_per_s"]


def _title(case: Case, varied: Sequence[str], *, with_strategy: bool) -> str:
    words = [case.strategy] if with_strategy else []
    return listed(*words, f"A = {case.grad_accum_steps}", describe(case, varied))


def _times(axes: "Axes", pairs: Sequence[Pair], predicted_s: Mapping[Case, float]) -> None:
    x = [link_rate(pair) for pair in pairs]
    ends = []
    for modes in ([p.replicated for p in pairs], [p.sharded for p in pairs]):
        case = modes[0].case
        known = [m.case for m in modes if m.case in predicted_s]
        across, up = [a.link_mbit_per_s or 0 for a in known], [predicted_s[a] for a in known]
        axes.plot(across, up, LINES[case.accumulation], color=GREY, lw=1)
        draw_spread(axes, x, [m.step_s for m in modes], **style_of(case))
        ends.append((x[-1], modes[-1].step_s.median, case.accumulation, INK))
    plain_log_axis(axes, "x", x)
    plain_log_axis(axes, "y")
    _mark_crossing(axes, measured_points(pairs), "measured", INK, height=0.97)
    _mark_crossing(axes, predicted_points(pairs), "predicted", GREY, height=0.89)
    axes.set(xlabel="link rate, Mbit/s", ylabel="seconds per step")
    label_ends(axes, ends)


def _mark_crossing(
    axes: "Axes", points: Sequence[tuple[float, float]], how: str, colour: str, *, height: float
) -> None:
    rate = crossing(points, BREAK_EVEN).rate
    if rate is None:
        return
    axes.axvline(rate, color=colour, lw=0.9)
    on_the_right = axes.transData.transform((rate, 1))[0] > axes.bbox.x0 + axes.bbox.width / 2
    axes.annotate(
        f"{how} {rounded(rate)}",
        (rate, height),
        (-3 if on_the_right else 3, 0),
        xycoords=("data", "axes fraction"),
        textcoords="offset points",
        ha="right" if on_the_right else "left",
        va="top",
        fontsize=7,
        color=colour,
        bbox={"fc": PAPER, "ec": "none", "pad": 0.6},
    )


def ratio_chart(groups: Sequence[Sequence[Pair]]) -> Chart:
    """Draw sharded by replicated step time against link rate, strategies as lines."""
    varied = _varied(groups)
    by_title = grouped(groups, lambda g: _title(g[0].case, varied, with_strategy=False))
    panels = [
        Panel(_title(alike[0][0].case, varied, with_strategy=False), partial(_ratios, groups=alike))
        for alike in by_title
    ]
    return Chart(
        name="ratio",
        title="Sharded by replicated step time against link rate",
        caption="Measured: points, medians of repeats that ran interleaved, with bars from the "
        f"lowest to the highest. {_predicted(groups, 'dotted lines')} In the band "
        f"the modes differ by at most {PERCENT}; above it replicated is faster.",
        panels=panels,
        absent="No pair of cases was measured at more than one link rate.",
    )


def _ratios(axes: "Axes", groups: Sequence[Sequence[Pair]]) -> None:
    axes.axhspan(1 / BREAK_EVEN, BREAK_EVEN, color=RULE, lw=0)
    ends = []
    for pairs in groups:
        strategy = pairs[0].case.strategy
        colour, x = COLOURS[strategy], [link_rate(pair) for pair in pairs]
        points = predicted_points(pairs)
        axes.plot([rate for rate, _ in points], [y for _, y in points], ":", color=colour, lw=1.2)
        draw_spread(axes, x, [pair.ratio for pair in pairs], color=colour, marker="s")
        ends.append((x[-1], pairs[-1].ratio.median, strategy, colour))
    plain_log_axis(axes, "x", sorted({link_rate(pair) for pairs in groups for pair in pairs}))
    plain_log_axis(axes, "y")
    axes.set(xlabel="link rate, Mbit/s", ylabel="sharded / replicated")
    label_ends(axes, ends)
