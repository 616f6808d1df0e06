"""`toolkit summary`: what a run did, read from its folder."""

from pathlib import Path
from typing import Annotated

import typer

from toolkit.commands.options import Overrides


def summary(
    config: Annotated[Path, typer.Argument(metavar="RUN.yaml", show_default=False)],
    overrides: Overrides = None,
) -> None:
    """Summarise what a run did: its loss, speed, last sample and folder.

    Example: toolkit summary my.yaml
    """
    from toolkit.runs.summary import summarise

    for line in summarise(config, overrides or []):
        typer.echo(line)
