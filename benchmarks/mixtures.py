"""Time against memory between the modes: a table of all cases and one picture.

    python -m benchmarks.mixtures benchmarks/results/cpu-mixtures \\
        --profiles benchmarks/results/cpu-links

Writes mixtures.md and mixtures.svg beside the folder's records. Times are medians of the repeats'
own medians, memory is the measured peak of the rank that had most. Predictions are from the machine
profiles of another folder, with the computation of one of the cases.
"""

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Annotated, Any, NamedTuple

import typer

from benchmarks.fitting import settings_of
from benchmarks.measured import Measured, counts_agree, gradients_agree, link_words
from benchmarks.record import Case, Record, read_records
from benchmarks.report import predicted_by
from benchmarks.sweep import exit_code_of
from toolkit.program.readers.traffic import sent_bytes
from toolkit.program.step import write_step

MIB = 2**20
PICTURE = "mixtures.svg"
COLOR = "#d26a16"
NEAR, MUCH = 1.02, 1.03
"""How much longer than the fastest counts as equal, and how much longer than a mode as worse."""


class Budgeted(NamedTuple):
    """What a rule's point that fits a peak takes: of the fastest, and of the better mode."""

    of_fastest: float
    of_mode: float | None


def main(
    folder: Annotated[Path, typer.Argument(help="with records.jsonl")],
    profiles: Annotated[Path | None, typer.Option(help="folder with profile*.json")] = None,
) -> None:
    """Write what a folder's records show of mixtures and reductions."""
    measured: dict[Case, list[Record]] = defaultdict(list)
    for record in read_records(folder):
        if record.step_s:
            measured[record.case].append(record)
    cases = [Measured(case, tuple(records)) for case, records in measured.items()]
    predicted = predicted_by(profiles, cases) if profiles else {}
    lines = [f"# {folder.name}", "", recommend(measured), "", *describe(measured), ""]
    lines += [*check_choice(measured, predicted), *check_predictions(measured, predicted)]
    text = "\n".join([*lines, *table(measured, predicted)])
    (folder / "mixtures.md").write_text(text + "\n")
    draw(measured, predicted, folder / PICTURE)


def seconds(records: Sequence[Record]) -> float:
    """Return the median over repeats of a step's time."""
    return median(median(record.step_s or ()) for record in records)


def peak(records: Sequence[Record]) -> int:
    """Return the most bytes that a rank had allocated in any repeat."""
    return max(record.peak_memory_bytes or 0 for record in records)


def recommend(measured: Mapping[Case, list[Record]]) -> str:
    """Return the fastest mixture with a peak no higher than a slower `replicated`, if any is."""
    faster: dict[str, list[float]] = defaultdict(list)
    for case, records in measured.items():
        whole = measured.get(case.model_copy(update={"accumulation": "replicated"}))
        if whole and whole != records and peak(records) <= peak(whole):
            faster[f"{case.accumulation} ({case.precision})"].append(
                seconds(records) / seconds(whole)
            )
    if not faster:
        return "Nothing was measured that takes no more memory than a measured `replicated`."
    name, ratios = min(faster.items(), key=lambda item: median(item[1]))
    listed = ", ".join(f"{ratio:.2f}" for ratio in ratios)
    return (
        f"Of what takes no more memory than `replicated`, the fastest was `{name}`: {listed} of "
        "its time in the settings measured."
    )


def describe(measured: Mapping[Case, list[Record]]) -> list[str]:
    """Return how many records agree with the step program to the byte, and on what machine."""
    records = [record for repeats in measured.values() for record in repeats]
    agree = sum(counts_agree(record) and gradients_agree(record) for record in records)
    environment = records[0].environment
    return [
        f"Measured on {environment.cpu}, {environment.cores} cores, {environment.device}; "
        f"{len(records)} records of {len(measured)} cases. In {agree} of them payloads, calls and "
        "held gradients are those of the step's program to the byte. Times are medians with the "
        "least and the most of the repeats; the ratio is to `sharded` of the same setting.",
        "",
        f"![time against memory]({PICTURE})",
    ]


def check_choice(
    measured: Mapping[Case, list[Record]], predicted: Mapping[Case, float]
) -> list[str]:
    """Return how good the rules of `accumulation: auto` are among the measured points.

    Each measured peak of a setting of at least four points is a budget, and each of its points that
    fits a candidate.
    """
    settings = [cases for cases in _settings(measured).values() if len(cases) > 3]
    known = [cases for cases in settings if predicted.keys() >= set(cases)]
    return [
        *_check_rule("sends least", "is not known", settings, measured, _sent),
        *_check_rule("is predicted to be fastest", "is", known, measured, lambda c: predicted[c]),
    ]


def _check_rule(
    what: str,
    where: str,
    settings: Sequence[Sequence[Case]],
    measured: Mapping[Case, list[Record]],
    cost: Callable[[Case], float],
) -> list[str]:
    """Return how near the fastest what costs least is, over the budgets of all settings."""
    found = [
        _budgeted(cases, measured, limit, cost)
        for cases in settings
        for limit in sorted({peak(measured[case]) for case in cases})
    ]
    if not found:
        return []
    near = sum(each.of_fastest <= NEAR for each in found)
    slower = sum((each.of_mode or 0) > MUCH for each in found)
    return [
        f"Of all that fits, `accumulation: auto` takes what {what} where the machine's speed "
        f"{where}. In {near} of {len(found)} budgets (each measured peak of a setting, its "
        f"measured points as candidates) it took at most 2 % longer than the fastest, in {slower} "
        "more than 3 % longer than the better mode that fits.",
        "",
    ]


def _sent(case: Case) -> float:
    return sent_bytes(write_step(settings_of(case, "cpu")))


def _settings(measured: Mapping[Case, list[Record]]) -> dict[str, list[Case]]:
    """Return the cases that differ in accumulation alone, by all else."""
    found: dict[str, list[Case]] = defaultdict(list)
    for case in measured:
        found[case.model_dump_json(exclude={"accumulation"})].append(case)
    return found


def _budgeted(
    cases: Sequence[Case],
    measured: Mapping[Case, list[Record]],
    limit: int,
    cost: Callable[[Case], float],
) -> Budgeted:
    fitting = [case for case in cases if peak(measured[case]) <= limit]
    took = seconds(measured[min(fitting, key=cost)])
    modes = [seconds(measured[case]) for case in fitting if isinstance(case.accumulation, str)]
    fastest = min(seconds(measured[case]) for case in fitting)
    return Budgeted(took / fastest, took / min(modes) if modes else None)


def check_predictions(
    measured: Mapping[Case, list[Record]], predicted: Mapping[Case, float]
) -> list[str]:
    """Return how many predicted times are near the measured ones, by link."""
    off: dict[str, list[float]] = defaultdict(list)
    for case, predicted_s in predicted.items():
        error = abs(predicted_s / seconds(measured[case]) - 1)
        off[link_words(case.link_mbit_per_s)].append(error)
    if not off:
        return []
    words = [
        f"{sum(each <= 0.1 for each in errors)} of {len(errors)} over {link}"
        for link, errors in off.items()
    ]
    return [f"Predicted within 10 % of the measured time: {', '.join(words)}.", ""]


def table(measured: Mapping[Case, list[Record]], predicted: Mapping[Case, float]) -> list[str]:
    """Return one row per case."""
    lines = [
        "| link | strategy | A | precision | accumulation | reduce | step, ms | least - most | "
        "ratio | predicted, ms | peak, MiB | held, MiB |",
        "| --- | --- | --- | --- | --- | --- | --- | --- | --- | --- | --- | --- |",
    ]
    for case, records in measured.items():
        repeats = [1e3 * median(record.step_s or ()) for record in records]
        held = records[0].gradient_bytes_held
        sharded = case.model_copy(update={"accumulation": "sharded"})
        base = measured.get(sharded.model_copy(update={"reduce": "fp32"})) or measured.get(sharded)
        cells: list[Any] = [
            link_words(case.link_mbit_per_s),
            case.strategy,
            case.grad_accum_steps,
            case.precision,
            case.accumulation,
            case.reduce or "",
            f"{1e3 * seconds(records):,.0f}",
            f"{min(repeats):,.0f} - {max(repeats):,.0f}",
            f"{seconds(records) / seconds(base):.2f}" if base else "",
            f"{1e3 * predicted[case]:,.0f}" if case in predicted else "",
            f"{peak(records) / MIB:.2f}",
            "" if held is None else f"{held / MIB:.2f}",
        ]
        lines.append("| " + " | ".join(map(str, cells)) + " |")
    return lines


def draw(
    measured: Mapping[Case, list[Record]], predicted: Mapping[Case, float], path: Path
) -> None:
    """Draw a panel for each setting: the modes are filled, points between them are rings."""
    import matplotlib

    matplotlib.use("svg")
    from matplotlib.figure import Figure

    panels: dict[str, list[Case]] = defaultdict(list)
    for case in measured:
        link = link_words(case.link_mbit_per_s)
        setting = f"{case.strategy}, {link}, {case.grad_accum_steps} micro-steps, {case.precision}"
        panels[setting].append(case)
    columns = min(3, len(panels))
    rows = -(-len(panels) // columns)
    figure = Figure(figsize=(4.8 * columns, 3.8 * rows), layout="constrained")
    for number, (title, cases) in enumerate(panels.items(), start=1):
        axes = figure.add_subplot(rows, columns, number)
        axes.set(title=title, xlabel="measured peak, MiB", ylabel="ms per step")
        _draw_panel(axes, sorted(cases, key=lambda case: peak(measured[case])), measured, predicted)
    figure.suptitle(
        "Each point is a way to accumulate: down is faster, left is smaller. Filled: the modes.\n"
        "Bars: the repeats. Solid: the fastest measured for a peak. Dotted: predicted.",
        fontsize=9,
    )
    figure.savefig(path, metadata={"Date": None})


def _draw_panel(
    axes: Any,
    cases: Sequence[Case],
    measured: Mapping[Case, list[Record]],
    predicted: Mapping[Case, float],
) -> None:
    fastest: list[tuple[float, float]] = []
    for case in cases:
        x, y = peak(measured[case]) / MIB, 1e3 * seconds(measured[case])
        repeats = [1e3 * median(record.step_s or ()) for record in measured[case]]
        around = [[y - min(repeats)], [max(repeats) - y]]
        fill = COLOR if isinstance(case.accumulation, str) else "white"
        axes.errorbar(x, y, around, fmt="o", color=COLOR, markerfacecolor=fill, elinewidth=1)
        words = " ".join(filter(None, [str(case.accumulation).replace("; ", "\n"), case.reduce]))
        axes.annotate(words, (x, y), xytext=(5, 3), textcoords="offset points", fontsize=6)
        if not fastest or y < fastest[-1][1]:
            fastest.append((x, y))
    axes.plot(*zip(*fastest, strict=True), color=COLOR, linewidth=1)
    if known := [case for case in cases if case in predicted]:
        xs = [peak(measured[case]) / MIB for case in known]
        axes.plot(xs, [1e3 * predicted[case] for case in known], ":", color="black", linewidth=1)
    axes.set_ylim(0, None)
    axes.margins(x=0.4)


if __name__ == "__main__":
    raise SystemExit(exit_code_of(lambda: typer.run(main)))
