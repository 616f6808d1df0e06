"""The charts of one sweep that need no link: speed, bytes, gradient memory, predicted ratios."""

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from benchmarks.comparison import BREAK_EVEN, PERCENT, Pair
from benchmarks.figures import (
    COLOURS,
    INK,
    LINES,
    MARKERS,
    RULE,
    Chart,
    Panel,
    label_ends,
    plain_log_axis,
)
from benchmarks.measured import (
    Measured,
    Spread,
    describe,
    expected_payload,
    grouped,
    listed,
    payload,
    setting_of,
    varied_fields,
)
from benchmarks.record import Case

if TYPE_CHECKING:
    from matplotlib.axes import Axes

MIB = 2**20
REDUCTIONS = ("all_reduce", "reduce_scatter")


def speed_chart(cases: Sequence[Measured]) -> Chart:
    """Draw tokens/s against A, a panel for each strategy, its modes as lines."""
    varied = varied_fields(m.case for m in cases)
    strategies = len({m.case.strategy for m in cases})
    panels = []
    for here in grouped(cases, lambda m: m.setting):
        top = 1.08 * max(m.tokens_per_s.high for m in here)
        for of_strategy in grouped(here, lambda m: m.case.strategy):
            if len({m.case.grad_accum_steps for m in of_strategy}) > 1:
                title = listed(of_strategy[0].case.strategy, describe(here[0].case, varied))
                panels.append(Panel(title, partial(_speed, cases=of_strategy, top=top)))
    return Chart(
        name="speed",
        title="Tokens per second against gradient accumulation",
        caption="Measured: all ranks together. Points are medians of the repeats, bars reach from "
        "the lowest to the highest repeat. Panels of one setting share their scale.",
        panels=panels,
        absent="No strategy was measured at more than one A.",
        columns=2 if strategies % 2 == 0 else 3,
    )


def _speed(axes: "Axes", cases: Sequence[Measured], top: float) -> None:
    ends = []
    for line in grouped(cases, lambda m: m.case.accumulation):
        x = [m.case.grad_accum_steps for m in line]
        draw_spread(axes, x, [m.tokens_per_s for m in line], **style_of(line[0].case))
        ends.append((x[-1], line[-1].tokens_per_s.median, line[0].case.accumulation, INK))
    plain_log_axis(axes, "x", sorted({m.case.grad_accum_steps for m in cases}))
    axes.set(xlabel="micro-steps per optimizer step, A", ylabel="tokens/s", ylim=(0, top))
    axes.yaxis.set_major_formatter(lambda value, _: f"{value:,.0f}")
    label_ends(axes, ends)


def draw_spread(axes: "Axes", x: Sequence[float], spreads: Sequence[Spread], **style: Any) -> None:
    """Draw medians as a line with markers, and from the lowest to the highest repeat as bars."""
    middle = [spread.median for spread in spreads]
    below = [spread.median - spread.low for spread in spreads]
    above = [spread.high - spread.median for spread in spreads]
    axes.errorbar(x, middle, yerr=[below, above], elinewidth=0.9, capsize=2.5, **style)


def style_of(case: Case) -> dict[str, str]:
    """Return how a case is drawn: coloured by strategy, line and marker by mode."""
    mode = case.accumulation
    return {"color": COLOURS[case.strategy], "linestyle": LINES[mode], "marker": MARKERS[mode]}


def bytes_chart(cases: Sequence[Measured]) -> Chart:
    """Draw the payload of one optimizer step, a panel for each A, formulas as marks."""
    free = ("micro_batch_size", "seq_len", "link_mbit_per_s", "loss", "data", "compile")
    varied = [name for name in varied_fields(m.case for m in cases) if name not in free]
    panels = []
    # Bytes depend on neither the batch nor the link, so one case stands for all of those.
    for group in grouped(
        [m for m in cases if m.case.world_size > 1],
        lambda m: (setting_of(m.case, without=free), m.case.grad_accum_steps),
    ):
        alone = {(m.case.strategy, m.case.accumulation): m for m in group}
        chosen = list(alone.values())
        title = listed(f"A = {chosen[0].case.grad_accum_steps}", describe(chosen[0].case, varied))
        panels.append(Panel(title, partial(_bytes, cases=chosen)))
    return Chart(
        name="bytes",
        title="Bytes communicated per optimizer step",
        caption="Counted in the running program: payload of one rank, reductions solid, gathers "
        "hatched. Calculated: the black marks, from the closed formulas; a bracket where they give "
        "bounds.",
        panels=panels,
        absent="No case had more than one rank.",
    )


def _bytes(axes: "Axes", cases: Sequence[Measured]) -> None:
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
    panels = []
    for in_setting in grouped(cases, lambda m: m.setting):
        held = [m for m in in_setting if m.records[0].gradient_bytes_held]
        most = max((m.case.grad_accum_steps for m in held), default=0)
        chosen = [m for m in held if m.case.grad_accum_steps == most]
        if len(chosen) > 1:
            title = listed(f"A = {most}", describe(chosen[0].case, varied))
            panels.append(Panel(title, partial(_memory, cases=chosen)))
    return Chart(
        name="memory",
        title="Speed against gradient memory held between micro-steps",
        caption="Measured, at the largest A of each setting: circles replicated, squares sharded, "
        "diamonds deferred. Bars reach from the lowest to the highest repeat, lines join the modes "
        "of a strategy. Up and left is better.",
        panels=panels,
        absent="No setting has two cases that hold gradients between micro-steps.",
    )


def _memory(axes: "Axes", cases: Sequence[Measured]) -> None:
    ends = []
    for modes in grouped(cases, lambda m: m.case.strategy):
        strategy = modes[0].case.strategy
        x = [(m.records[0].gradient_bytes_held or 0) / MIB for m in modes]
        y = [m.tokens_per_s.median for m in modes]
        axes.plot(x, y, color=COLOURS[strategy], lw=0.8)
        for measured, held in zip(modes, x, strict=True):
            alone = style_of(measured.case) | {"linestyle": ""}
            draw_spread(axes, [held], [measured.tokens_per_s], **alone)
        right = max(range(len(x)), key=lambda i: x[i])
        ends.append((x[right], y[right], strategy, COLOURS[strategy]))
    axes.set(xlabel="gradients held, MiB per rank", ylabel="tokens/s")
    axes.set(xlim=(0, None), ylim=(0, 1.08 * max(m.tokens_per_s.high for m in cases)))
    axes.yaxis.set_major_formatter(lambda value, _: f"{value:,.0f}")
    label_ends(axes, ends)


def prediction_chart(pairs: Sequence[Pair]) -> Chart:
    """Draw predicted against measured ratios, each strategy in its colour."""
    known = [pair for pair in pairs if pair.predicted is not None]
    return Chart(
        name="prediction",
        title="Predicted and measured ratios",
        caption="Sharded by replicated step time, a point for each pair of cases: measured across, "
        f"predicted up. In the band the prediction is within {PERCENT}.",
        panels=[Panel("", partial(_predictions, pairs=known))] if known else [],
        absent="There is no prediction to compare with.",
    )


def _predictions(axes: "Axes", pairs: Sequence[Pair]) -> None:
    found = [value for p in pairs for value in (p.ratio.median, p.predicted or 1)]
    limits = [0.9 * min(found), 1.1 * max(found)]
    axes.fill_between(
        limits,
        [edge / BREAK_EVEN for edge in limits],
        [edge * BREAK_EVEN for edge in limits],
        color=RULE,
        lw=0,
    )
    for strategy, colour in COLOURS.items():
        own = [p for p in pairs if p.case.strategy == strategy]
        if own:
            across, up = [p.ratio.median for p in own], [p.predicted or 1 for p in own]
            axes.plot(across, up, "o", color=colour, label=strategy, mfc="none", mew=1.3)
    plain_log_axis(axes, "x")
    plain_log_axis(axes, "y")
    axes.set(xlim=limits, ylim=limits, xlabel="measured, sharded / replicated", ylabel="predicted")
    axes.legend(loc="upper left", fontsize=7.5, handletextpad=0.2)
