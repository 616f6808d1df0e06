"""`toolkit estimate`: rows for every strategy and mode, as a table, as JSON and as a picture."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from toolkit.config.section import MAX_MICRO_BATCH
from toolkit.engines.mixture import to_config
from toolkit.memory.hardware import Gpu, in_gib, with_unit
from toolkit.program.events import PARTS, Moment, Part
from toolkit.program.settings import StepSettings
from toolkit.program.step import estimate_peak


@dataclass(frozen=True)
class Row:
    """One strategy and mode: its settings and what they need.

    `method` names how that is known; only the formula knows the moment, and a range: `least` is its
    lower end, `peak` and its parts the upper one, by which is judged what fits. `largest` is the
    largest micro-batch that fits, where that was asked for.
    """

    settings: StepSettings
    parts: dict[Part, int]
    peak: int
    moment: Moment | None
    method: str = "formula"
    least: int | None = None
    largest: int | None = None

    @property
    def gib(self) -> str:
        """The peak or its range in GiB."""
        if self.least is None or self.least == self.peak:
            return in_gib(self.peak)
        return f"{in_gib(self.least)} - {in_gib(self.peak)}"

    def as_json(self, gpus: Sequence[Gpu]) -> dict[str, Any]:
        """Return the row with the names that scripts rely on."""
        settings = self.settings
        answer: dict[str, Any] = {
            "strategy": settings.strategy,
            "accumulation": to_config(settings.accumulation),
            "world_size": settings.world_size,
            "replica_groups": settings.replicas,
            "group_size": settings.shards,
            "micro_batch_size": settings.micro_batch_size,
            "seq_len": settings.seq_len,
            "grad_accum_steps": settings.grad_accum_steps,
            "precision": settings.precision,
            "activation_checkpointing": settings.activation_checkpointing,
            "method": self.method,
            "bytes": {**self.parts, "peak": self.peak},
            "lowest_peak": self.peak if self.least is None else self.least,
            "moment": self.moment,
            "fits": {gpu.name: gpu.holds(self.peak) for gpu in gpus},
        }
        if self.largest is not None:
            answer["largest_micro_batch_size"] = self.largest
        return answer


def estimate_row(settings: StepSettings) -> Row:
    """Return the closed-form row."""
    peak = estimate_peak(settings)
    return Row(settings, peak.parts, peak.total, peak.moment, least=peak.least)


def describe_parts(parts: dict[Part, int]) -> str:
    """Return the parts, the largest first, as one line."""
    ordered = sorted(((size, part) for part, size in parts.items() if size), reverse=True)
    return ", ".join(f"{part} {with_unit(size)}" for size, part in ordered)


def as_json(rows: Sequence[Row], gpus: Sequence[Gpu], checkpoint: int) -> dict[str, Any]:
    """Return the whole answer."""
    sizes = rows[0].settings.sizes
    return {
        "model": asdict(sizes),
        "parameters": sizes.parameter_count,
        "checkpoint_bytes": checkpoint,
        "fits_assumes": {gpu.name: gpu.calibration.model_dump() for gpu in gpus},
        "rows": [row.as_json(gpus) for row in rows],
    }


def print_table(rows: Sequence[Row], gpus: Sequence[Gpu]) -> None:
    """Print the table with a bar for each row, its parts in the order of the legend.

    Args:
        rows: what to show.
        gpus: for the column of the smallest that fits, or of the one asked about; none, no column.
    """
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    colours = dict(
        zip(PARTS, ("blue", "green", "cyan", "yellow", "red", "magenta", "white"), strict=True)
    )
    table = Table(box=None, pad_edge=False)
    for title in ("strategy", "accumulation"):
        table.add_column(title, no_wrap=True)
    table.add_column("GiB", justify="right")
    table.add_column("peak at")
    table.add_column("", no_wrap=True)
    if gpus:
        table.add_column("fits" if len(gpus) == 1 else "fits from")
    if any(row.largest is not None for row in rows):
        table.add_column("largest micro-batch", justify="right")
    highest = max(row.peak for row in rows)
    for row in rows:
        bar = Text()
        for part in PARTS:
            bar.append(_LETTERS[part] * round(28 * row.parts[part] / highest), colours[part])
        settings = row.settings
        cells: list[Any] = [
            _name(settings),
            str(settings.accumulation),
            row.gib,
            row.moment or "",
            bar,
        ]
        cells += [_fits(row.peak, gpus)] if gpus else []
        table.add_row(*cells, *([] if row.largest is None else [_at_least(row.largest)]))
    console = Console(width=None if Console().is_terminal else 110, highlight=False)
    console.print(table)
    console.print("  ".join(f"{_LETTERS[part]} {part}" for part in PARTS))


_LETTERS: dict[Part, str] = {
    "parameters": "P",
    "gradients": "G",
    "optimizer": "O",
    "activations": "A",
    "loss": "L",
    "communication": "C",
    "other": "x",
}


def _name(settings: StepSettings) -> str:
    groups = f" {settings.replicas} x {settings.shards}" if settings.replicas > 1 else ""
    return f"{settings.strategy}{groups}"


def _fits(peak: int, gpus: Sequence[Gpu]) -> str:
    fitting = [gpu.name for gpu in gpus if gpu.holds(peak)]
    if len(gpus) == 1:
        return "yes" if fitting else "no"
    return fitting[0] if fitting else "none"


def _at_least(largest: int) -> str:
    return f">= {largest}" if largest == MAX_MICRO_BATCH else str(largest)
