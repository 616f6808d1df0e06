"""The error table as Markdown."""

import csv
import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from benchmarks.memory.configurations import FOLDER
from benchmarks.memory.rivals import RIVALS
from toolkit.memory.hardware import GIB
from toolkit.model.sizes import ModelSizes
from toolkit.program.settings import StepSettings
from toolkit.program.step import estimate_peak

Rows = Sequence[dict[str, Any]]


def describe(rows: Mapping[str, Rows], sets: Sequence[str]) -> str:
    """Return the whole document; `sets` are the ones that formula and rivals are judged by."""
    judged = [row for name in sets for row in rows[name]]
    lines = ["# Memory: the formula against traced and measured steps", "", _EXPLAINED, ""]
    lines += summary(judged, sets)
    lines += ["", "## Every configuration", "", *every_row(judged)]
    lines += ["", "## Settings that the loop leaves alone", "", _KNOBS, ""]
    lines += knob_rows(rows["knobs"])
    lines += ["", "## torch.compile", "", _COMPILED, "", *compiled_rows(rows["compiled"])]
    lines += ["", "## Public measurements", "", _PUBLIC, "", *public_rows()]
    return "\n".join(lines) + "\n"


def summary(rows: Rows, sets: Sequence[str]) -> list[str]:
    """Return the table of worst errors, by set and oracle."""
    lines = ["| | configurations | worst below | worst above | median size | worst part |"]
    lines += ["| --- | --- | --- | --- | --- | --- |"]
    for name in sets:
        for method in ("trace", "allocator"):
            chosen = [r for r in rows if r["set"] == name and r["method"] == method]
            if chosen:
                lines.append(_summary_line(f"formula, {name}, {method}", chosen, "error_percent"))
    judged = [rival for rival in RIVALS if any(row[rival] is not None for row in rows)]
    lines += [_summary_line(rival, rows, rival) for rival in judged]
    return lines


def _summary_line(title: str, rows: Rows, column: str) -> str:
    errors = [row[column] for row in rows if row[column] is not None]
    part = f"{max(row['worst_part_percent'] for row in rows):.2f} %"
    return (
        f"| {title} | {len(errors)} | {min(0, *errors):+.2f} % | {max(0, *errors):+.2f} % | "
        f"{statistics.median(map(abs, errors)):.2f} % | "
        f"{part if column == 'error_percent' else '-'} |"
    )


def every_row(rows: Rows) -> list[str]:
    """Return one line for each configuration."""
    lines = ["| set | oracle | configuration | peak, MiB | formula | " + " | ".join(RIVALS) + " |"]
    lines += ["| --- " * (5 + len(RIVALS)) + "|"]
    for row in rows:
        errors = [row["error_percent"], *(row[rival] for rival in RIVALS)]
        cells = [f"{error:+.2f} %" if error is not None else "-" for error in errors]
        lines.append(
            f"| {row['set']} | {row['method']} | {_configuration(row)} | {_mib(row['peak_bytes'])} "
            f"| {' | '.join(cells)} |"
        )
    return lines


def knob_rows(rows: Rows) -> list[str]:
    """Return one line for each configuration that the loop would not run by itself."""
    lines = ["| configuration | changed | peak, MiB | formula |", "| --- " * 4 + "|"]
    for row in rows:
        lines.append(
            f"| {_configuration(row)} | {_changed(row)} | {_mib(row['peak_bytes'])} | "
            f"{row['error_percent']:+.2f} % |"
        )
    return lines


def compiled_rows(rows: Rows) -> list[str]:
    """Return one line for each compiled configuration, its range and what was measured."""
    lines = ["| configuration | peak, MiB | range, MiB | lower end | upper end |"]
    lines += ["| --- " * 5 + "|"]
    for row in rows:
        peak, least, most = (row[f"{key}_bytes"] for key in ("peak", "formula_least", "formula"))
        lines.append(
            f"| {_configuration(row)} | {_mib(peak)} | {_mib(least)} - {_mib(most)} | "
            f"{least / peak - 1:+.1%} | {most / peak - 1:+.1%} |"
        )
    return lines


def _mib(size: int) -> str:
    return f"{size / 2**20:,.1f}"


def _configuration(row: dict[str, Any]) -> str:
    keys = ("strategy", "accumulation", "world_size", "precision", "optimizer", "loss")
    words = " ".join(str(row[key]) for key in keys)
    size = f"{row['model']}, {row['micro_batch_size']} x {row['seq_len']}"
    extra = f", A {row['grad_accum_steps']}"
    extra += ", checkpointing" if row["activation_checkpointing"] else ""
    extra += f", dropout {row['dropout']}" if row["dropout"] else ""
    return f"{words}; {size}{extra}"


def _changed(row: dict[str, Any]) -> str:
    changed = {
        "foreach": row["foreach"],
        "no bucket views": not row["gradient_as_bucket_view"],
        "set_to_none": row["set_to_none"],
        "gradients zeroed": row["set_to_none"] is False,
        "plain attention": row["attention"] == "math",
        "one rank": row["world_size"] == 1 and row["strategy"] != "single",
    }
    return ", ".join(name for name, is_so in changed.items() if is_so) or "size"


def public_rows() -> list[str]:
    """Return the public measurements with the estimate and what had to be assumed."""
    lines = ["| source | model | reported | estimate, GiB allocated | agrees | assumed |"]
    lines += ["| --- " * 6 + "|"]
    with (FOLDER / "public.csv").open() as file:
        for row in csv.DictReader(file):
            total = estimate_peak(_public_settings(row)).total / GIB
            held = float(row["gpu_gb"])
            fits = {"fits": total <= held, "out of memory": total > held}.get(row["reported"])
            agrees = f"{total / 21.75 - 1:+.0%}" if fits is None else ("yes" if fits else "no")
            lines.append(
                f"| {row['source']} | {row['model']}, {row['strategy']} x {row['world_size']}, "
                f"{row['micro_batch_size']} x {row['seq_len']}, {row['precision']} | "
                f"{row['reported']} ({row['gpu_gb']} GB) | {total:.1f} | {agrees} | "
                f"{row['assumed']} |"
            )
    return lines


def _public_settings(row: dict[str, Any]) -> StepSettings:
    return StepSettings(
        sizes=ModelSizes(*map(int, row["model"].split())),
        strategy=row["strategy"],
        accumulation=row["accumulation"],
        world_size=int(row["world_size"]),
        micro_batch_size=int(row["micro_batch_size"]),
        seq_len=int(row["seq_len"]),
        precision=row["precision"],
        optimizer=row["optimizer"],
        foreach=row["foreach"] == "yes",
        activation_checkpointing=row["activation_checkpointing"] == "yes",
        loss=row["loss"],
        attention=row["attention"],
    )


_EXPLAINED = """\
Errors are of the peak of one rank, relative to what was found; the worst part is the largest
difference in a part that both sides tell apart, relative to the peak. `trace` is the real step on
tensors without data (`toolkit estimate --method trace`), `allocator` the real engines on a CPU, the
highest of steps 2 to 4, by PyTorch's allocator events, the fullest rank; buffers that gloo makes
for itself are left out there. Neither is a GPU: kernels' scratch, NCCL, the CUDA context and
fragmentation are in none of the figures. `held_out` was fixed before the formula was written; some
of its rows then showed that terms were missing: the all-reduced tensors that hybrid sharding keeps
(hsdp, sharded: -3.26 % before it was added from PyTorch's source), the fp32 copy that a CPU makes
to add up the chunked loss's gradient in bf16 (fsdp2 and zero2, replicated: -0.54 and -0.47 %), and
in what order DeepSpeed's stage 3 gathers ahead (-2.33 to +1.22 %; part of that was gloo's buffers,
which come and go as its threads get to run). One showed that the trace was wrong: it took a CPU's
kernels for SGD, where a GPU's decay all matrices at one time (large, SGD: +37.68 %). What rivals
leave out is said in `benchmarks/memory/rivals.py`."""

_KNOBS = """\
By allocator, like the rows above, with one thing changed in the running engine
(`benchmarks/memory/knobs.py`), on one rank, with more blocks than ZeRO-3 looks ahead, or more
words than the chunked loss adds up at one time. None of
these is held out. Offloading to host memory cannot be told apart on a CPU and is not measured."""

_COMPILED = """\
By allocator, each block under torch.compile (Inductor for CPUs). What a compiled block keeps is the
compiler's choice, so the formula gives a range: from everything that can be computed again point by
point left out, to everything kept as without a compiler."""

_PUBLIC = """\
Rows whose source gives enough of a configuration. Estimates are allocated bytes; a GPU needs
context, NCCL and fragmentation on top, so a bound says little beyond its direction. 23.36 GB were
read off the device, some 21.75 GiB."""
