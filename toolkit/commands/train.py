"""`toolkit train`: a run on its strategy, from the launch line to the exit code."""

from typing import Annotated

import typer

from toolkit.commands.options import Overrides, RunFile


def train(
    strategy: Annotated[str, typer.Option(help="One of configs/accelerate, or a launch file.")],
    config: RunFile,
    overrides: Overrides = None,
    num_processes: Annotated[
        int | None, typer.Option(help="Processes to start; else as the launch file says.")
    ] = None,
    strict: Annotated[
        bool, typer.Option("--strict", help="Refuse to pass over a damaged checkpoint.")
    ] = False,
) -> None:
    """Print the `accelerate launch` line of a run, run it, and return the run's exit code.

    The pair of files and the data are checked before anything is started.
    """
    from toolkit.training.start import start

    raise typer.Exit(
        start(strategy, config, overrides or [], num_processes=num_processes, strict=strict)
    )
