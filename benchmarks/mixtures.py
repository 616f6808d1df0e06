"""Time against memory between the modes: a table of all cases and one picture.

    python -m benchmarks.mixtures benchmarks/results/cpu-mixtures

Writes mixtures.md and mixtures.svg beside the folder's records. Times are medians of the repeats'
own medians, memory is the measured peak of the rank that had most.
"""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Annotated, Any

import typer

from benchmarks.measured import counts_agree, gradients_agree, link_words
from benchmarks.record import Case, Record, read_records
from benchmarks.sweep import exit_code_of

MIB = 2**20
PICTURE = "mixtures.svg"


def main(folder: Annotated[Path, typer.Argument(help="with records.jsonl")]) -> None:
    """Write what a folder's records say of mixtures and reductions."""
    measured: dict[Case, list[Record]] = defaultdict(list)
    for record in read_records(folder):
        if record.step_s:
            measured[record.case].append(record)
    lines = [f"# {folder.name}", "", recommend(measured), "", *describe(measured), ""]
    text = "\n".join([*lines, *table(measured)])
    (folder / "mixtures.md").write_text(text + "\n")
    draw(measured, folder / PICTURE)


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


def table(measured: Mapping[Case, list[Record]]) -> list[str]:
    """Return one row per case."""
    lines = [
        "| link | A | precision | accumulation | reduce | step, ms | least - most | ratio | "
        "peak, MiB | held, MiB |",
        "| --- | --- | --- | --- | --- | --- | --- | --- | --- | --- |",
    ]
    for case, records in measured.items():
        repeats = [1e3 * median(record.step_s or ()) for record in records]
        held = records[0].gradient_bytes_held
        sharded = case.model_copy(update={"accumulation": "sharded"})
        base = measured.get(sharded.model_copy(update={"reduce": "fp32"})) or measured.get(sharded)
        cells: list[Any] = [
            link_words(case.link_mbit_per_s),
            case.grad_accum_steps,
            case.precision,
            case.accumulation,
            case.reduce or "",
            f"{1e3 * seconds(records):,.0f}",
            f"{min(repeats):,.0f} - {max(repeats):,.0f}",
            f"{seconds(records) / seconds(base):.2f}" if base else "",
            f"{peak(records) / MIB:.2f}",
            "" if held is None else f"{held / MIB:.2f}",
        ]
        lines.append("| " + " | ".join(map(str, cells)) + " |")
    return lines


def draw(measured: Mapping[Case, list[Record]], path: Path) -> None:
    """Draw a panel for each setting; the modes are filled, a line joins points by memory."""
    import matplotlib

    matplotlib.use("svg")
    from matplotlib.figure import Figure

    panels: dict[str, list[Case]] = defaultdict(list)
    for case in measured:
        link = link_words(case.link_mbit_per_s)
        panels[f"{link}, A {case.grad_accum_steps}, {case.precision}"].append(case)
    columns = min(3, len(panels))
    rows = -(-len(panels) // columns)
    figure = Figure(figsize=(4.2 * columns, 3.2 * rows), layout="constrained")
    for number, (title, cases) in enumerate(panels.items(), start=1):
        axes = figure.add_subplot(rows, columns, number)
        for case in sorted(cases, key=lambda case: peak(measured[case])):
            x, y = peak(measured[case]) / MIB, 1e3 * seconds(measured[case])
            is_mode = isinstance(case.accumulation, str)
            axes.plot(x, y, "o", color="#d26a16", fillstyle="full" if is_mode else "none")
            words = " ".join(filter(None, [str(case.accumulation), case.reduce]))
            axes.annotate(words, (x, y), xytext=(4, 4), textcoords="offset points", fontsize=6)
        axes.set(title=title, xlabel="peak, MiB", ylabel="ms per step", ylim=(0, None))
        axes.margins(x=0.25)
    figure.savefig(path, metadata={"Date": None})


if __name__ == "__main__":
    raise SystemExit(exit_code_of(lambda: typer.run(main)))
