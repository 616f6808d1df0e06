"""A picture of memory through one step."""

from pathlib import Path

from toolkit.errors import UsageError
from toolkit.memory.hardware import GIB
from toolkit.program.events import PARTS, Part
from toolkit.program.readers.peak import changes, read_peak, totals
from toolkit.program.settings import StepSettings
from toolkit.program.step import write_step


def plot_step(settings: StepSettings, path: Path) -> Path:
    """Draw the allocated bytes after each event of a step, stacked by part, the peak marked.

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
    held = dict.fromkeys(PARTS, 0)
    curves: dict[Part, list[float]] = {part: [] for part in PARTS}
    for changed, size in changes(program):
        held[changed] += size
        for part in PARTS:
            curves[part].append(held[part] / GIB)
    peak = read_peak(program)
    sums = totals(program)
    event = sums.index(peak.total)
    figure = Figure(figsize=(10, 5), layout="constrained")
    axes = figure.add_subplot()
    axes.stackplot(range(len(sums)), list(curves.values()), labels=PARTS, step="post")
    axes.plot(event, peak.total / GIB, "kv")
    axes.annotate(
        f"{peak.total / GIB:.2f} GiB, {peak.moment}",
        (event, peak.total / GIB),
        textcoords="offset points",
        xytext=(6, 6),
    )
    axes.set_xlabel("allocations and frees, in program order")
    axes.set_ylabel("GiB per rank")
    axes.set_title(f"{settings.strategy}, {settings.accumulation}")
    axes.legend(loc="upper left", fontsize="small")
    try:
        figure.savefig(file)
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error).splitlines()[0]
        raise UsageError(f"--plot {file}: {reason}") from None
    return file
