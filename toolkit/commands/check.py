"""`toolkit check`: run configurations and launch files, each alone and every pair of them."""

from pathlib import Path
from typing import Annotated

import typer


def check(
    files: Annotated[list[Path], typer.Argument(metavar="FILE...", show_default=False)],
) -> None:
    """Check run configurations and launch files, each alone and every pair of them.

    Example: toolkit check my.yaml configs/accelerate/zero2.yaml
    """
    from toolkit.errors import UsageError
    from toolkit.launch.check import check_files

    report = check_files(files)
    for line in report.good:
        typer.echo(line)
    for line in report.problems:
        typer.echo(line, err=True)
    raise typer.Exit(UsageError.exit_code if report.problems else 0)
