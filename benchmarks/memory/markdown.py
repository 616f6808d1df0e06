"""The error table as Markdown, by the template `memory_errors.md.j2`."""

import csv
from collections.abc import Iterator, Mapping, Sequence
from statistics import median
from typing import Any

from jinja2 import Environment, FileSystemLoader

from benchmarks.memory.configurations import FOLDER
from benchmarks.memory.rivals import RIVALS
from toolkit.memory.hardware import GIB
from toolkit.model.sizes import ModelSizes
from toolkit.program.settings import StepSettings
from toolkit.program.step import estimate_peak

Rows = Sequence[dict[str, Any]]
READ_OFF_GIB = 21.75
"""What a source read off its device as 23.36 GB."""


def describe(rows: Mapping[str, Rows], sets: Sequence[str]) -> str:
    """Return the whole document; `sets` are the ones that formula and rivals are judged by."""
    judged = [row for name in sets for row in rows[name]]
    templates = Environment(loader=FileSystemLoader(FOLDER), trim_blocks=True)
    return templates.get_template("memory_errors.md.j2").render(
        summary=_summary(judged, sets),
        judged=judged,
        knobs=rows["knobs"],
        compiled=rows["compiled"],
        public=public_rows(),
        rivals=list(RIVALS),
        configuration=_configuration,
        changed=_changed,
        mib=lambda size: f"{size / 2**20:,.1f}",
        percent=lambda error: "-" if error is None else f"{error:+.2f} %",
        **{function.__name__: function for function in (min, max, median)},
    )


def _summary(rows: Rows, sets: Sequence[str]) -> Iterator[tuple[str, list[float], str]]:
    """Yield a name, errors in percent and the worst part, by set and oracle and for each rival."""
    for name in sets:
        for method in ("trace", "allocator"):
            chosen = [r for r in rows if r["set"] == name and r["method"] == method]
            if chosen:
                errors = [row["error_percent"] for row in chosen]
                worst = max(row["worst_part_percent"] for row in chosen)
                yield f"formula, {name}, {method}", errors, f"{worst:.2f} %"
    for rival in RIVALS:
        if errors := [row[rival] for row in rows if row[rival] is not None]:
            yield rival, errors, "-"


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


def public_rows() -> list[dict[str, str]]:
    """Return the public measurements with the estimate and whether it agrees."""
    with (FOLDER / "public.csv").open() as file:
        rows = list(csv.DictReader(file))
    for row in rows:
        total = estimate_peak(_public_settings(row)).total / GIB
        held = float(row["gpu_gb"])
        fits = {"fits": total <= held, "out of memory": total > held}.get(row["reported"])
        row["estimate"] = f"{total:.1f}"
        row["agrees"] = f"{total / READ_OFF_GIB - 1:+.0%}" if fits is None else _YES_NO[fits]
    return rows


_YES_NO = {True: "yes", False: "no"}


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
