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
    machines: Annotated[
        str | None,
        typer.Option(
            help="On each machine of a run: how many there may be, as they come and go.",
            metavar="LEAST:MOST",
        ),
    ] = None,
    per_machine: Annotated[
        int, typer.Option(help="Processes on each machine, with --machines.", min=1)
    ] = 1,
    address: Annotated[
        str | None, typer.Option(help="By which other machines reach this one; else its host's.")
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

    With --machines, each machine of the run calls this, and they may come and go.

    Example: toolkit train --strategy fsdp2 --num-processes 2 --config my.yaml
    """
    from toolkit.errors import UsageError
    from toolkit.training.elastic import start_elastic
    from toolkit.training.start import start

    flags = {"--strict": strict, "--verbose": verbose, "--quiet": quiet}
    options = [flag for flag, is_given in flags.items() if is_given]
    if machines is not None:
        if num_processes is not None:
            raise UsageError("--machines takes --per-machine, not --num-processes")
        raise typer.Exit(
            start_elastic(
                strategy,
                config,
                overrides or [],
                machines=machines,
                per_machine=per_machine,
                address=address,
                options=options,
            )
        )
    raise typer.Exit(
        start(
            strategy,
            config,
            overrides or [],
            num_processes=num_processes,
            options=options,
        )
    )
