"""The record of a check as one page of Markdown."""

import json
from typing import Any


def write_page(record: dict[str, Any]) -> str:
    """Return the page of a record, a table for each stage."""
    environment = record["environment"]
    versions = ", ".join(f"{name} {version}" for name, version in environment["versions"].items())
    calibration = record["calibration"]
    lines = [
        "# GPU check",
        "",
        f"Measured on {environment['device']} with {environment['cpu']}, {environment['cores']} "
        f"cores, at {environment['started_at']}: {versions}.",
        "",
    ]
    if record["device"] == "cpu":
        lines += ["A rehearsal on a CPU at tiny sizes: its figures hold for no GPU.", ""]
    for name, stage in record["stages"].items():
        lines += [f"## {name[0].upper()}{name[1:]}", "", _state(stage), "", *_table(stage["rows"])]
    if calibration is not None:
        lines += ["## Calibration", "", "```json", json.dumps(calibration, indent=1), "```", ""]
    return "\n".join(lines)


def _state(stage: dict[str, Any]) -> str:
    problems = sum("problem" in row for row in stage["rows"])
    found = f"{problems} not as claimed" if problems else "all as claimed"
    state = found if stage["complete"] else f"stopped before its end, {found} until then"
    return f"{stage['seconds']:g} s: {state if stage['rows'] else 'not run'}."


def _table(rows: list[dict[str, Any]]) -> list[str]:
    if not rows:
        return []
    columns = list(dict.fromkeys(key for row in rows for key in row))
    cells = [[_cell(row.get(column)) for column in columns] for row in rows]
    header = [columns, ["---"] * len(columns), *cells]
    return [*(f"| {' | '.join(row)} |" for row in header), ""]


def _cell(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        return f"{value:,}"
    text = f"{value:.3g}" if isinstance(value, float) else str(value)
    return text.replace("|", "\\|").replace("\n", " ")
