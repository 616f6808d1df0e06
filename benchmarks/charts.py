"""The charts of a report; `link_charts` has those of a sweep over link rates."""

from collections.abc import Iterable, Sequence
from functools import partial
from typing import Any

from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from benchmarks.comparison import BREAK_EVEN, PERCENT, Pair
from benchmarks.figures import (
    COLOURS,
    INK,
    LINES,
    MARKERS,
    MIXED_LINE,
    MIXED_MARKER,
    RULE,
    Chart,
    Panel,
    plain_log_axis,
)
from benchmarks.measured import (
    Measured,
    Spread,
    describe,
    expected_payload,
    grouped,
    payload,
    setting_of,
    varied_fields,
)
from benchmarks.record import Case

MIB = 2**20
REDUCTIONS = ("all_reduce", "reduce_scatter")


def speed_chart(cases: Sequence[Measured]) -> Chart:
    """Draw tokens/s against A, a panel for each strategy, its modes as lines."""
    varied = varied_fields(m.case for m in cases)
    panels, drawn = [], []
    for here in grouped(cases, lambda m: setting_of(m.case)):
        top = 1.08 * max(m.tokens_per_s.high for m in here)
        for of_strategy in grouped(here, lambda m: m.case.strategy):
            if len({m.case.grad_accum_steps for m in of_strategy}) > 1:
                title = describe(here[0].case, varied, of_strategy[0].case.strategy)
                panels.append(Panel(title, partial(_speed, cases=of_strategy, top=top)))
                drawn += [m.case for m in of_strategy]
    return Chart(
        name="speed",
        title="Tokens per second against gradient accumulation",
        caption="Measured: all ranks together. Points are medians of the repeats, bars reach from "
        "the lowest to the highest repeat. Panels of one setting share their scale.",
        panels=panels,
        legend=mode_legend(drawn),
    )


def _speed(axes: Axes, cases: Sequence[Measured], top: float) -> None:
    for line in grouped(cases, lambda m: m.case.accumulation):
        x = [m.case.grad_accum_steps for m in line]
        draw_spread(axes, x, [m.tokens_per_s for m in line], **style_of(line[0].case))
    plain_log_axis(axes, "x", sorted({m.case.grad_accum_steps for m in cases}))
    axes.set(xlabel="micro-steps per optimizer step, A", ylabel="tokens/s", ylim=(0, top))
    axes.yaxis.set_major_formatter(lambda value, _: f"{value:,.0f}")


def draw_spread(axes: Axes, x: Sequence[float], spreads: Sequence[Spread], **style: Any) -> None:
    """Draw medians as a line with markers, and from the lowest to the highest repeat as bars."""
    middle = [spread.median for spread in spreads]
    below = [spread.median - spread.low for spread in spreads]
    above = [spread.high - spread.median for spread in spreads]
    axes.errorbar(x, middle, yerr=[below, above], elinewidth=0.9, capsize=2.5, **style)


def style_of(case: Case) -> dict[str, str]:
    """Return how a case is drawn: coloured by strategy, line and marker by mode."""
    mode = str(case.accumulation)
    return {"color": COLOURS[case.strategy], **_line(mode)}


def _line(mode: str) -> dict[str, str]:
    return {
        "linestyle": LINES.get(mode, MIXED_LINE),
        "marker": MARKERS.get(mode, MIXED_MARKER),
    }


def mode_legend(cases: Iterable[Case], **style: Any) -> list[Artist]:
    """Return an entry for each mode of accumulation."""
    modes = dict.fromkeys(str(case.accumulation) for case in cases)
    usual = [{**_line(mode), "color": INK} for mode in modes]
    return [
        Line2D([], [], label=mode, **(own | style)) for mode, own in zip(modes, usual, strict=True)
    ]


def strategy_legend(cases: Iterable[Case]) -> list[Artist]:
    """Return an entry for each strategy."""
    strategies = dict.fromkeys(case.strategy for case in cases)
    return [Line2D([], [], color=COLOURS[name], lw=3, label=name) for name in strategies]


def bytes_chart(cases: Sequence[Measured]) -> Chart:
    """Draw the payload of one optimizer step, a panel for each A, formulas as marks."""
    # Bytes depend on neither the batch nor the link, so one case stands for all of those.
    free = ("micro_batch_size", "seq_len", "link_mbit_per_s", "loss", "data", "compile")
    several = [m for m in cases if m.case.world_size > 1]
    varied = varied_fields((m.case for m in several), without=free)
    panels = []
    for group in grouped(
        several, lambda m: (setting_of(m.case, without=free), m.case.grad_accum_steps)
    ):
        chosen = list({(m.case.strategy, m.case.accumulation): m for m in group}.values())
        title = describe(chosen[0].case, varied, f"A = {chosen[0].case.grad_accum_steps}")
        panels.append(Panel(title, partial(_bytes, cases=chosen)))
    return Chart(
        name="bytes",
        title="Bytes communicated per optimizer step",
        caption="Counted in the running program: payload of one rank, reductions solid, gathers "
        "hatched. Calculated: the black marks, from the step's program; a bracket where there are "
        "bounds.",
        panels=panels,
        legend=[
            Patch(color=INK, label="reductions, counted"),
            Patch(fill=False, edgecolor=INK, hatch="////", lw=0, label="gathers, counted"),
            Line2D([], [], color=INK, marker="|", ms=9, lw=0, label="both, calculated"),
        ],
    )


def _bytes(axes: Axes, cases: Sequence[Measured]) -> None:
    names = []
    for row, measured in enumerate(reversed(cases)):
        case, record = measured.case, measured.records[0]
        counted = record.collectives or {}
        colour = COLOURS[case.strategy]
        reduced = payload(counted, REDUCTIONS) / MIB
        gathered = payload(counted, ["all_gather"]) / MIB
        axes.barh(row, reduced, 0.62, color=colour)
        axes.barh(
            row, gathered, 0.62, left=reduced, fill=False, edgecolor=colour, hatch="////", lw=0
        )
        bounds = expected_payload(record)
        ends = [bounds.low / MIB, bounds.high / MIB]
        axes.plot(ends, [row, row], color=INK, marker="|", markersize=9, lw=0.8)
        names.append(f"{case.strategy}, {case.accumulation}")
    axes.use_sticky_edges = False
    axes.set(xlabel="MiB per step and rank")
    axes.set_xlim(left=0)
    axes.set_yticks(range(len(names)), names)
    axes.grid(visible=False, axis="y")


def memory_chart(cases: Sequence[Measured]) -> Chart:
    """Draw gradient memory held against tokens/s, at the largest A of each setting."""
    varied = varied_fields(m.case for m in cases)
    panels: list[tuple[str, list[Measured]]] = []
    for in_setting in grouped(cases, lambda m: setting_of(m.case)):
        held = [m for m in in_setting if m.records[0].gradient_bytes_held]
        most = max((m.case.grad_accum_steps for m in held), default=0)
        chosen = [m for m in held if m.case.grad_accum_steps == most]
        if len(chosen) > 1:
            panels.append((describe(chosen[0].case, varied, f"A = {most}"), chosen))
    drawn = [m for _, chosen in panels for m in chosen]
    speeds = [end for m in drawn for end in m.tokens_per_s]
    limits = {
        "xlim": (0, 1.1 * max((_held_mib(m) for m in drawn), default=1)),
        "ylim": (0.8 * min(speeds, default=1), 1.2 * max(speeds, default=1)),
    }
    return Chart(
        name="memory",
        title="Speed against gradient memory held between micro-steps",
        caption="Measured, at the largest A of each setting. Bars reach from the lowest to the "
        "highest repeat, lines join the modes of a strategy. Up and left is better.",
        panels=[Panel(t, partial(_memory, cases=chosen, limits=limits)) for t, chosen in panels],
        legend=[
            *strategy_legend(m.case for m in drawn),
            *mode_legend((m.case for m in drawn), ls=""),
        ],
    )


def _held_mib(measured: Measured) -> float:
    return (measured.records[0].gradient_bytes_held or 0) / MIB


def _memory(axes: Axes, cases: Sequence[Measured], limits: dict[str, Any]) -> None:
    for modes in grouped(cases, lambda m: m.case.strategy):
        x = [_held_mib(m) for m in modes]
        axes.plot(x, [m.tokens_per_s.median for m in modes], color=COLOURS[modes[0].case.strategy])
        for measured, held in zip(modes, x, strict=True):
            alone = style_of(measured.case) | {"linestyle": ""}
            draw_spread(axes, [held], [measured.tokens_per_s], **alone)
    axes.set(xlabel="gradients held, MiB per rank", ylabel="tokens/s", **limits)
    plain_log_axis(axes, "y")


def prediction_chart(pairs: Sequence[Pair]) -> Chart:
    """Draw predicted against measured ratios, each strategy in its colour."""
    known = [pair for pair in pairs if pair.predicted is not None]
    return Chart(
        name="prediction",
        title="Predicted and measured ratios",
        caption="Sharded by replicated step time, a point for each pair of cases: measured across, "
        f"predicted up. In the band the prediction is within {PERCENT}.",
        panels=[Panel("", partial(_predictions, pairs=known))] if known else [],
        legend=[
            *strategy_legend(pair.case for pair in known),
            Patch(color=RULE, label=f"within {PERCENT}"),
        ],
    )


def _predictions(axes: Axes, pairs: Sequence[Pair]) -> None:
    found = [value for p in pairs for value in (p.ratio.median, p.predicted or 1)]
    limits = (0.9 * min(found), 1.1 * max(found))
    below, above = ([edge * by for edge in limits] for by in (1 / BREAK_EVEN, BREAK_EVEN))
    axes.fill_between(limits, below, above, color=RULE, lw=0)
    for own in grouped(pairs, lambda p: p.case.strategy):
        across, up = [p.ratio.median for p in own], [p.predicted or 1 for p in own]
        axes.plot(across, up, "o", color=COLOURS[own[0].case.strategy], mfc="none", mew=1.3)
    axes.set(xlim=limits, ylim=limits, xlabel="measured, sharded / replicated", ylabel="predicted")
    plain_log_axis(axes, "x")
    plain_log_axis(axes, "y")
