"""The error table: the formula and its rivals against traced and measured steps.

`python -m benchmarks.memory.error_table` measures what `results/memory_oracle.csv` does not hold
yet, row by row, then writes `memory_errors.csv` and `memory_errors.md` beside it.
"""

import argparse
import csv
import json
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any

from benchmarks.memory import rank
from benchmarks.memory.configurations import Configuration, load
from benchmarks.memory.markdown import describe
from benchmarks.memory.rivals import RIVALS
from toolkit.launch.processes import launch
from toolkit.program.events import Part
from toolkit.program.step import estimate_peak

ROOT = Path(__file__).parents[2]
ROOT = Path(__file__).parents[2]
RESULTS = ROOT / "benchmarks" / "results"
ORACLE = RESULTS / "memory_oracle.csv"
SETS = ("tuned", "held_out")
EXTRAS = ("knobs", "compiled")
SEPARABLE: dict[str, tuple[Part, ...]] = {
    # The trackers file the loss, and gradients that FSDP2 adds up, under temporaries.
    "trace": ("parameters", "optimizer", "communication"),
    "allocator": ("optimizer", "loss"),
}
"""Parts that an oracle separates as the formula does."""


def main() -> None:
    """Measure what is missing, up to `--at-most` launches or traces, then write the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--at-most", type=int, default=10**6, help="launches and traces")
    asked = parser.parse_args()
    RESULTS.mkdir(exist_ok=True)
    oracle = read_oracle()
    for group in list(missing_groups(oracle))[: asked.at_most]:
        for configuration, found in zip(group, run_group(group), strict=True):
            oracle[configuration] = found
            write_oracle(oracle)
    write_table(oracle)


def missing_groups(oracle: dict[Configuration, dict[str, int]]) -> Iterable[list[Configuration]]:
    """Yield what is to be measured together: launches by strategy and ranks, traces one by one."""
    todo = [c for name in (*SETS, *EXTRAS) for c in load(name) if c not in oracle]

    def key(configuration: Configuration) -> tuple[bool, str, int]:
        return configuration.compile, configuration.strategy, configuration.world_size

    measured = sorted((c for c in todo if c.method == "allocator"), key=key)
    for _, group in groupby(measured, key):
        yield list(group)
    yield from ([c] for c in todo if c.method == "trace")


def run_group(group: list[Configuration]) -> list[dict[str, int]]:
    """Trace in a process of its own, or measure all in one launch."""
    first = group[0]
    if first.method == "trace":
        script = [sys.executable, "-m", "benchmarks.memory.traced", json.dumps(first.row())]
        printed = subprocess.run(script, cwd=ROOT, check=True, capture_output=True, text=True)
        return [json.loads(printed.stdout)]
    with tempfile.TemporaryDirectory() as folder:
        order, results = Path(folder) / "order.json", Path(folder) / "results.json"
        rows = [configuration.row() for configuration in group]
        order.write_text(json.dumps({"configurations": rows, "results": str(results)}))
        script = [rank.__file__, str(order)]
        launch(first.strategy, first.world_size, script, timeout_s=600.0)
        measured: list[dict[str, int]] = json.loads(results.read_text())
        return measured


def read_oracle() -> dict[Configuration, dict[str, int]]:
    """Return the bytes that were traced or measured, `peak` and parts, by configuration."""
    if not ORACLE.exists():
        return {}
    with ORACLE.open() as file:
        rows = [(json.loads(row.pop("bytes")), row) for row in csv.DictReader(file)]
    return {Configuration.from_row(row): found for found, row in rows}


def write_oracle(oracle: dict[Configuration, dict[str, int]]) -> None:
    """Write all of it."""
    rows = [{**c.row(), "bytes": json.dumps(found)} for c, found in oracle.items()]
    _write_csv(ORACLE, rows)


def write_table(oracle: dict[Configuration, dict[str, int]]) -> None:
    """Write every error as CSV, and the tables as Markdown."""
    rows = {
        name: [error_row(name, c, oracle[c]) for c in load(name) if c in oracle]
        for name in (*SETS, *EXTRAS)
    }
    _write_csv(RESULTS / "memory_errors.csv", [row for some in rows.values() for row in some])
    (RESULTS / "memory_errors.md").write_text(describe(rows, SETS))


def error_row(name: str, configuration: Configuration, found: dict[str, int]) -> dict[str, Any]:
    """Return one row: relative errors in percent, of the peak and of each part that is known.

    A trace runs on a CPU's operators without gloo, which is what a GPU's step is to the formula.
    """
    traced = configuration.method == "trace"
    settings = configuration.settings(device="cuda" if traced else "cpu")
    estimate = estimate_peak(settings)
    peak = found["peak"]
    parts = SEPARABLE[configuration.method]
    errors = [abs(estimate.parts[part] - found[part]) / peak for part in parts if part in found]
    return {
        "set": name,
        **configuration.model_dump(),
        "peak_bytes": peak,
        "formula_bytes": estimate.total,
        "formula_least_bytes": estimate.least,
        "moment": estimate.moment,
        "error_percent": _percent(estimate.total, peak),
        "worst_part_percent": round(100 * max(errors), 3),
        **{rival: _percent(formula(settings), peak) for rival, formula in RIVALS.items()},
    }


def _percent(estimated: int | None, found: int) -> float | None:
    return None if estimated is None else round(100 * (estimated / found - 1), 3)


def _write_csv(path: Path, rows: Sequence[dict[str, Any]]) -> None:
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)


if __name__ == "__main__":
    main()
