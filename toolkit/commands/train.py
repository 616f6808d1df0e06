"""`toolkit train`: a run on its strategy, from the launch line to the exit code."""

from typing import Annotated

import typer

from toolkit.commands.options import Overrides, RunFile


def train(
    strategy: Annotated[str, typer.Option(help="One of configs/accelerate, or a launch file.")],
    config: RunFile,
    overrides: Overrides = None,
    num_processes: Annotated[
        int | None, typer.Option(help="Processes to start; else the launch file's.")
    ] = None,
    strict: Annotated[
        bool, typer.Option("--strict", help="Refuse to skip a damaged checkpoint.")
    ] = False,
    verbose: Annotated[bool, typer.Option("--verbose", help="Print every check.")] = False,
    quiet: Annotated[
        bool, typer.Option("--quiet", help="Print warnings and errors alone.")
    ] = False,
) -> None:
    """Print the `accelerate launch` line of a run, run it, and return the run's exit code.

    The pair of files and the data are checked before anything is started.

    Example: toolkit train --strategy fsdp2 --num-processes 2 --config my.yaml
    """
    from toolkit.training.start import start

    flags = {"--strict": strict, "--verbose": verbose, "--quiet": quiet}
    raise typer.Exit(
        start(
            strategy,
            config,
            overrides or [],
            num_processes=num_processes,
            options=[flag for flag, is_given in flags.items() if is_given],
        )
    )
