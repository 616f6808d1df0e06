"""Scaling curves as a table and a picture, with the larger steps' and the failures' share."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import sqrt
from pathlib import Path

from toolkit.errors import UsageError
from toolkit.memory.hardware import in_gib
from toolkit.memory.states import checkpoint_bytes
from toolkit.planning.answer import PlanRow
from toolkit.planning.cost import span
from toolkit.planning.curve import Point, Scaling, curve, takes_over
from toolkit.planning.reason import describe, milliseconds

CRITICAL_TOKENS = 1_120_000
"""Critical batch at a loss of 3: 2.1e8 tokens / 3^(1 / 0.21) = 1.1 million (Kaplan et al. 2020,
arXiv:2001.08361, table 5 and equation 1.4), for language models on web text; it grows as the loss
falls."""
GPU_DAYS_BETWEEN_FAILURES = 2_111
"""419 unexpected interruptions in 54 days on 16,384 H100 (Dubey et al. 2024, arXiv:2407.21783,
section 3.3.4)."""
SAVED_BYTES_PER_S = 1e9
"""Assumed rate at which all ranks together write a checkpoint."""


@dataclass(frozen=True)
class Failures:
    """What failures ask for on so many GPUs, from assumed rates."""

    gpus: int
    checkpoint: int

    @property
    def per_day(self) -> float:
        """Failures of any GPU, or of what is around it."""
        return self.gpus / GPU_DAYS_BETWEEN_FAILURES

    @property
    def save_s(self) -> float:
        """Seconds of a save."""
        return self.checkpoint / SAVED_BYTES_PER_S

    @property
    def interval_s(self) -> float:
        """Seconds of training between saves that lose the least.

        Daly 2006 ("A higher order estimate of the optimum checkpoint interval for restart dumps",
        equation 37), whose first term is Young's 1974 root of 2 x save x time between failures.
        """
        between = 86_400 / self.per_day
        if self.save_s >= 2 * between:
            return between
        ratio = self.save_s / (2 * between)
        young = sqrt(2 * self.save_s * between)
        return young * (1 + sqrt(ratio) / 3 + ratio / 9) - self.save_s


def describe_scaling(best: PlanRow) -> Iterator[str]:
    """Yield both tables, with what was assumed."""
    step = best.settings
    size = checkpoint_bytes(step.sizes.parameter_count, adam=step.optimizer == "adamw")
    meanings: dict[Scaling, str] = {
        "weak": "each GPU keeps its tokens",
        "strong": f"{best.tokens_per_step:,} tokens a step whatever the GPUs",
    }
    for scaling, meaning in meanings.items():
        points = curve(best, scaling)
        yield f"{scaling} scaling of {describe(best)}: {meaning}"
        yield from _table(points, size)
        over = takes_over(points)
        last = points[-1].gpus
        yield (
            f"communication takes over half of the step from {over:,} GPUs on"
            if over
            else f"communication stays below half of the step up to {last:,} GPUs"
        )
    yield (
        f"assumed: a critical batch of {CRITICAL_TOKENS:,} tokens (Kaplan et al. 2020, at a loss "
        "of 3), at which a run needs twice the tokens to the same loss (McCandlish et al. 2018)"
    )
    yield (
        f"assumed: a failure every {GPU_DAYS_BETWEEN_FAILURES:,} GPU-days (Dubey et al. 2024), and "
        f"{SAVED_BYTES_PER_S / 1e9:g} GB/s to save {in_gib(size)} GiB; interval by Daly 2006"
    )


def _table(points: Sequence[Point], checkpoint: int) -> Iterator[str]:
    headings = (
        *("GPUs", "tokens a step", "step", "efficiency", "waiting", "tokens needed"),
        *("failures a day", "save every"),
    )
    rows = [headings, *(_cells(point, checkpoint) for point in points)]
    widths = [max(len(row[i]) for row in rows) for i in range(len(headings))]
    for row in rows:
        yield "  " + "  ".join(cell.rjust(width) for cell, width in zip(row, widths, strict=True))


def _cells(point: Point, checkpoint: int) -> tuple[str, ...]:
    failures = Failures(point.gpus, checkpoint)
    return (
        f"{point.gpus:,}",
        f"{point.row.tokens_per_step:,}",
        milliseconds(point.row.step_s),
        _percent(point.efficiency),
        _percent(point.exposed),
        f"x {1 + point.row.tokens_per_step / CRITICAL_TOKENS:.2f}",
        f"{failures.per_day:.2g}",
        f"{failures.interval_s / 60:.0f} min",
    )


def _percent(ends: tuple[float, float]) -> str:
    return f"{span([100 * round(end, 2) for end in ends])} %"


def plot_scaling(best: PlanRow, path: Path) -> Path:
    """Draw efficiency and waiting over GPUs, weak and strong.

    Returns:
        The file that was written: `path`, with `.png` at its end if it has no ending.

    Raises:
        UsageError: the file cannot be written, or its ending names no picture format.
    """
    import matplotlib

    matplotlib.use("agg")
    from matplotlib.figure import Figure

    file = path if path.suffix else path.with_name(f"{path.name}.png")
    figure = Figure(figsize=(10, 4), layout="constrained")
    panels = figure.subplots(1, 2, sharey=True)
    scalings: tuple[Scaling, Scaling] = ("weak", "strong")
    for axes, scaling in zip(panels, scalings, strict=True):
        points = curve(best, scaling)
        gpus = [point.gpus for point in points]
        for name, ends in (
            ("efficiency", [point.efficiency for point in points]),
            ("waiting for communication", [point.exposed for point in points]),
        ):
            axes.fill_between(gpus, *zip(*ends, strict=True), alpha=0.3)
            axes.plot(gpus, [sum(each) / 2 for each in ends], "o-", label=name)
        axes.set_xscale("log", base=2)
        axes.set_ylim(0, 1.05)
        axes.set_xlabel("GPUs")
        axes.set_title(f"{scaling} scaling")
        axes.grid(alpha=0.3)
    panels[0].legend()
    figure.suptitle(f"{describe(best)}, {best.cluster.gpu.name}")
    try:
        figure.savefig(file)
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error).splitlines()[0]
        raise UsageError(f"--plot {file}: {reason}") from None
    return file
