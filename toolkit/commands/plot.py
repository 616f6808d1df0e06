"""`toolkit plot`: the curves of one run or several."""

from pathlib import Path
from typing import Annotated, Literal

import typer


def plot(
    runs: Annotated[
        list[Path],
        typer.Argument(metavar="RUN...", help="Run folders or their YAML.", show_default=False),
    ],
    by: Annotated[
        Literal["step", "tokens", "hours"], typer.Option(help="What is to the right.")
    ] = "step",
    out: Annotated[
        Path | None,
        typer.Option(
            help="A .png, or a .html that zooms and holds all it needs.",
            metavar="FILE",
            show_default="plot.png in the run folder, of several runs here",
        ),
    ] = None,
) -> None:
    """Draw loss, gradient norm, learning rate, speed and memory.

    Example: toolkit plot runs/a runs/b --by tokens --out both.html
    """
    from toolkit.runs.draw import draw_runs
    from toolkit.runs.record import read_run

    found = [read_run(run) for run in runs]
    file = out or (found[0].folder if len(found) == 1 else Path()) / "plot.png"
    draw_runs(found, file, axis=by)
    typer.echo(file)
