"""`toolkit config`: what each key of a run configuration means."""

from typing import Annotated

import typer

from toolkit.errors import UsageError


def config(
    key: Annotated[
        str | None,
        typer.Argument(metavar="[KEY]", help="A key, or the section of several."),
    ] = None,
) -> None:
    """Show the keys of a run configuration: type, default and meaning.

    Example: toolkit config optimizer.lr
    """
    from toolkit.config.problems import unknown_key
    from toolkit.config.reference import reference
    from toolkit.config.synonyms import SYNONYMS

    keys = reference()
    shown = [found for found in keys if key in (None, found.name, found.name.partition(".")[0])]
    if key is not None and not shown:
        raise UsageError(unknown_key(key, [found.name for found in keys], SYNONYMS))
    for found in shown:
        typer.echo(f"{found.name}: {found.default}\n  {found.meaning}\n  {found.type}")
