"""`toolkit compare`: two runs beside each other."""

from pathlib import Path
from typing import Annotated

import typer

_RunPath = Annotated[
    Path, typer.Argument(metavar="RUN", help="A run folder or its YAML.", show_default=False)
]


def compare(a: _RunPath, b: _RunPath) -> None:
    """Report how two runs were set up differently, where they part, and what they cost.

    Example: toolkit compare runs/ddp runs/fsdp2
    """
    from toolkit.runs.compare import compare_runs
    from toolkit.runs.record import read_run

    for line in compare_runs(read_run(a), read_run(b)):
        typer.echo(line)
