"""`toolkit summary`: what a run did, read from its folder."""

import typer

from toolkit.commands.options import Overrides, RunPath


def summary(run: RunPath, overrides: Overrides = None) -> None:
    """Summarise what a run did: its loss, speed, last sample and folder.

    Example: toolkit summary runs/my
    """
    from toolkit.runs.summary import summarise

    for line in summarise(run, overrides or []):
        typer.echo(line)
