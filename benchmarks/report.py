"""`python -m benchmarks.report RECORDS_FOLDER --out DIR`: records as a page, a table and pictures.

Reads `records.jsonl` of the folder and, for predictions, `profile*.json`, one for each link; writes
`report.html`, `records.csv` with a line for each record, and a PNG for each chart.
"""

import argparse
import csv
import sys
from base64 import b64encode
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any

from jinja2 import Environment as Templates
from jinja2 import FileSystemLoader

from benchmarks.charts import bytes_chart, memory_chart, prediction_chart, speed_chart
from benchmarks.comparison import over_links, pairs_of
from benchmarks.figures import colour_variables, svgs_of, write_png
from benchmarks.findings import findings
from benchmarks.link_charts import ratio_chart, time_chart
from benchmarks.measured import (
    KINDS,
    Measured,
    grouped,
    measured_cases,
    step_seconds,
    subject,
    why_not_measured,
)
from benchmarks.prediction import compute_of, predict_step
from benchmarks.record import RECORDS, Case, Record, Split, read_records
from benchmarks.tables import (
    bytes_table,
    cases_table,
    crossing_table,
    prediction_table,
    profile_table,
    unmeasured_table,
)
from toolkit.errors import ToolkitError, UsageError
from toolkit.home import expand_words
from toolkit.prediction.machine_profile import Environment, MachineProfile, read_profile

# Whatever a later change might load from elsewhere, browsers refuse, and report on their console.
POLICY = "default-src 'none'; style-src 'unsafe-inline'"


def main(arguments: Sequence[str] | None = None) -> int:
    """Write a report and return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.report", description=__doc__)
    parser.add_argument("folder", type=Path, help="folder of a sweep, with its records.jsonl")
    parser.add_argument("--out", type=Path, required=True, help="folder to write to")
    asked = parser.parse_args(expand_words(sys.argv[1:] if arguments is None else arguments))
    try:
        write_report(asked.folder, asked.out)
    except ToolkitError as error:
        print(f"error: {error}", file=sys.stderr)
        return error.exit_code
    print(asked.out / "report.html")
    return 0


def write_report(folder: Path, out: Path) -> None:
    """Write the report on a folder's records.

    Raises:
        UsageError: there are no records, a line is damaged (it names the line), `out` cannot be
            made, or a file in it cannot be written.
    """
    records = read_records(folder)
    if not records:
        raise UsageError(f"{folder / RECORDS}: no records, so there is nothing to report")
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UsageError(f"--out {out}: cannot be made a folder: {error.strerror}") from None
    try:
        _write_files(folder, records, out)
    except OSError as error:
        raise UsageError(f"{error.filename or out}: {error.strerror}") from None


def _write_files(folder: Path, records: Sequence[Record], out: Path) -> None:
    cases = measured_cases(records)
    profile_files = sorted(folder.glob("profile*.json"))
    profiles = [read_profile(path) for path in profile_files]
    predicted_s = _predicted(cases, profiles)
    pairs = pairs_of(cases, predicted_s)
    linked = over_links(pairs)
    environments = _environments(records)
    hardware = "; ".join(dict.fromkeys(map(_hardware, environments)))
    model = subject([m.case for m in cases])
    subtitle = f"GPT-2, {model}; measured on {hardware}" if model else f"Measured on {hardware}"
    charts = [
        speed_chart(cases),
        time_chart(linked, predicted_s),
        ratio_chart(linked),
        bytes_chart(cases),
        memory_chart(cases),
        prediction_chart(pairs),
    ]
    charts = [chart for chart in charts if chart.panels]
    for chart in charts:
        write_png(chart, out / f"{chart.name}.png", subtitle=subtitle)
    _write_csv(out / "records.csv", records, predicted_s)
    tables = [
        crossing_table(linked),
        prediction_table(pairs),
        profile_table(profiles),
        bytes_table(cases),
        cases_table(cases, predicted_s),
        unmeasured_table(records),
    ]
    templates = Templates(
        loader=FileSystemLoader(Path(__file__).parent), autoescape=True, trim_blocks=True
    )
    html = templates.get_template("report.html.j2").render(
        policy=POLICY,
        light=colour_variables(),
        dark=colour_variables(dark=True),
        title=f"Gradient accumulation, sharded and replicated: {_sweeps(records)}",
        subtitle=subtitle,
        findings=findings(records, cases, pairs),
        charts=charts,
        svgs_of=svgs_of,
        tables=tables,
        machines=map(_machine, environments),
        is_predicted=bool(predicted_s),
        attached=[folder / RECORDS, out / "records.csv", *profile_files],
        b64encode=b64encode,
    )
    (out / "report.html").write_text(html)


def predicted_by(folder: Path, cases: Sequence[Measured]) -> dict[Case, float]:
    """Return predicted seconds per step by the machine profiles of a folder, where there is one.

    Raises:
        UsageError: a profile cannot be read.
    """
    profiles = [read_profile(path) for path in sorted(folder.glob("profile*.json"))]
    return _predicted(cases, profiles) if profiles else {}


def _predicted(cases: Sequence[Measured], profiles: Sequence[MachineProfile]) -> dict[Case, float]:
    """Return predicted seconds per step of the cases whose link and groups have a profile."""
    records = [record for measured in cases for record in measured.records]
    found = {}
    for case in (measured.case for measured in cases):
        compute = compute_of(records, case)
        # Where a profile is missing it is refused.
        with suppress(UsageError):
            if compute is not None:
                found[case] = predict_step(case, compute, profiles).step_s
    return found


def _sweeps(records: Sequence[Record]) -> str:
    named = dict.fromkeys(record.sweep for record in records if record.sweep)
    return ", ".join(named) or "single cases"


def _environments(records: Sequence[Record]) -> list[Environment]:
    """Return environments that differ in more than the time, each as of its first record."""
    every = (record.environment for record in records)
    return [alike[0] for alike in grouped(every, _without_time)]


def _without_time(environment: Environment) -> str:
    return environment.model_dump_json(exclude={"started_at"})


def _hardware(environment: Environment) -> str:
    return f"{environment.device} ({environment.cpu}, {environment.cores} cores)"


def _machine(environment: Environment) -> str:
    versions = ", ".join(f"{name} {version}" for name, version in environment.versions.items())
    git = ", ".join(f"{key} {value}" for key, value in (environment.git or {}).items())
    return (
        f"Measured on {_hardware(environment)}, {environment.threads} threads per rank, from "
        f"{environment.started_at} on; {versions}{'; git: ' if git else ''}{git}."
    )


def _write_csv(path: Path, records: Sequence[Record], predicted_s: Mapping[Case, float]) -> None:
    rows = [_row(record, predicted_s) for record in records]
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)


def _row(record: Record, predicted_s: Mapping[Case, float]) -> dict[str, Any]:
    measured = why_not_measured(record) is None
    case = record.case.model_dump(exclude={"model"})
    traffic = record.collectives or {}
    return {
        "sweep": record.sweep,
        **case,
        **asdict(record.case.model),
        "repeat": record.repeat,
        "step_s": step_seconds(record) if measured else None,
        "predicted_step_s": predicted_s.get(record.case),
        "tokens_per_s": record.tokens_per_s,
        "mfu": record.mfu,
        **{f"{kind}_bytes": traffic[kind].bytes if kind in traffic else None for kind in KINDS},
        "gradient_bytes_held": record.gradient_bytes_held,
        "peak_memory_bytes": record.peak_memory_bytes,
        "estimated_peak_memory_bytes": record.estimated_peak_memory_bytes,
        **{name: getattr(record.split, name, None) for name in Split.model_fields},
        "not_measured": why_not_measured(record),
    }


if __name__ == "__main__":
    sys.exit(main())
