"""A picture of memory through one step."""

from collections.abc import Iterator
from itertools import groupby
from pathlib import Path
from typing import Any

from toolkit.counted import counted
from toolkit.errors import UsageError
from toolkit.memory.hardware import GIB, Gpu, with_unit
from toolkit.program.events import PARTS, PHASES, Part, Phase, Program
from toolkit.program.readers.peak import changes, moments, read_peak, totals
from toolkit.program.settings import StepSettings
from toolkit.program.step import write_step

_FAR = 4
"""Times the peak; a capacity beyond would press the step against the bottom."""


def plot_step(settings: StepSettings, path: Path, gpu: Gpu | None = None) -> Path:
    """Draw the allocated bytes after each event of a step, stacked by part.

    The peak and the phases are marked, and with a `gpu` the most that it holds, where that is not
    so far above the peak that nothing else could be seen.

    Returns:
        The file that was written: `path`, with `.png` at its end if it has no ending.

    Raises:
        UsageError: the file cannot be written, or its ending names no picture format.
    """
    if path.is_dir():
        raise UsageError(f"--plot {path}: is a folder; name a file, such as {path / 'step.png'}")
    file = path if path.suffix else path.with_name(f"{path.name}.png")
    import matplotlib

    matplotlib.use("agg")
    from matplotlib.figure import Figure

    program = write_step(settings)
    figure = Figure(figsize=(10, 5), layout="constrained")
    axes = figure.add_subplot()
    _draw_parts(axes, program)
    _mark_phases(axes, program)
    if gpu is not None:
        _mark_capacity(axes, gpu, read_peak(program).total)
    axes.margins(x=0)
    axes.set_xlabel("allocations and frees, in program order; alike micro-steps are drawn once")
    axes.set_ylabel("GiB per rank, estimated")
    axes.set_title(_title(settings), pad=18)
    axes.set_ylim(top=1.25 * axes.dataLim.ymax)  # below the legend
    axes.legend(loc="upper left", fontsize="small", ncols=4)
    try:
        figure.savefig(file)
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error).splitlines()[0]
        raise UsageError(f"--plot {file}: {reason}") from None
    return file


def _title(settings: StepSettings) -> str:
    ranks = counted(settings.world_size, "rank")
    return (
        f"{settings.strategy} on {ranks}, accumulation {settings.accumulation}\n"
        f"{settings.sizes.parameter_count:,} parameters, {settings.precision}, "
        f"{settings.grad_accum_steps} x {settings.micro_batch_size} sequences of "
        f"{settings.seq_len} tokens per rank"
    )


def _draw_parts(axes: Any, program: Program) -> None:
    held = dict.fromkeys(PARTS, 0)
    curves: dict[Part, list[float]] = {part: [] for part in PARTS}
    for changed, size in changes(program):
        held[changed] += size
        for part in PARTS:
            curves[part].append(held[part] / GIB)
    peak, sums = read_peak(program), totals(program)
    event = sums.index(peak.total)
    shown = [part for part in PARTS if any(curves[part])]
    axes.stackplot(range(len(sums)), [curves[part] for part in shown], labels=shown, step="post")
    axes.plot(event, peak.total / GIB, "kv")
    axes.annotate(
        f"{with_unit(peak.total)}, {peak.moment}",
        (event, peak.total / GIB),
        textcoords="offset points",
        xytext=(6, 6),
    )


def phases(program: Program) -> Iterator[tuple[Phase, int, int]]:
    """Yield each phase with the number of the first change in it, and that after its last."""
    start = 0
    for phase, changes_in_it in groupby(PHASES[moment] for moment in moments(program)):
        stop = start + sum(1 for _ in changes_in_it)
        yield phase, start, stop
        start = stop


def _mark_phases(axes: Any, program: Program) -> None:
    """A line where each begins, its name at the top."""
    top = axes.get_xaxis_transform()
    for phase, start, stop in phases(program):
        axes.axvline(start, color="0.4", linewidth=0.8, linestyle=":")
        axes.text(
            (start + stop) / 2, 1.0, phase, transform=top, ha="center", va="bottom", fontsize=7
        )


def _mark_capacity(axes: Any, gpu: Gpu, peak: int) -> None:
    capacity = gpu.room / GIB
    label = f"{gpu.name} has room for {capacity:.2f} GiB"
    if capacity > _FAR * peak / GIB:
        axes.plot([], [], " ", label=f"{label}, far above")
    else:
        axes.axhline(capacity, color="tab:red", linestyle="--", label=label)
