"""`toolkit compare`: two runs beside each other."""

import typer

from toolkit.commands.options import RunPath


def compare(a: RunPath, b: RunPath) -> None:
    """Report how two runs were set up differently, where they part, and what they cost.

    Example: toolkit compare runs/ddp runs/fsdp2
    """
    from toolkit.runs.compare import compare_runs
    from toolkit.runs.record import read_run

    for line in compare_runs(read_run(a), read_run(b)):
        typer.echo(line)
