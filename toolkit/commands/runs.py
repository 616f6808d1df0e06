"""`toolkit runs`: a table of all runs."""

from pathlib import Path
from typing import Annotated

import typer


def runs(
    folder: Annotated[Path, typer.Argument(metavar="[DIR]", help="Where to look.")] = Path("runs"),
) -> None:
    """List the runs below a folder, with the progress of those that train.

    Example: toolkit runs experiments
    """
    from toolkit.errors import UsageError
    from toolkit.runs.record import find_runs
    from toolkit.runs.table import describe_runs

    found = list(find_runs(folder))
    if not found:
        raise UsageError(f"{folder}: holds no run")
    for line in describe_runs(found):
        typer.echo(line)
