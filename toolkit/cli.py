"""The `toolkit` command: its verbs, and exit codes for errors."""

import sys
from typing import Annotated

import typer

from toolkit import __version__
from toolkit.commands.check import check
from toolkit.commands.checkpoint import checkpoint
from toolkit.commands.data import data
from toolkit.commands.estimate import estimate
from toolkit.commands.summary import summary
from toolkit.commands.train import train
from toolkit.commands.verify import verify
from toolkit.errors import ReaderGone, ToolkitError
from toolkit.home import expand_words
from toolkit.standard_output import checked_stdout

app = typer.Typer(no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False)
app.command()(train)
app.command()(summary)
app.command()(check)
app.command()(verify)
app.command()(estimate)
app.add_typer(data, name="data")
app.add_typer(checkpoint, name="checkpoint")


def _print_version(is_asked: bool) -> None:
    if is_asked:
        typer.echo(f"toolkit {__version__}")
        raise typer.Exit


@app.callback()
def common(
    version: Annotated[
        bool,
        typer.Option(
            "--version", help="Print the version.", callback=_print_version, is_eager=True
        ),
    ] = False,
) -> None:
    """One GPT-2 training run, from one process to many, learning the same thing each time."""


def main() -> None:
    """Run the command; an error a person can cause is one sentence and an exit code."""
    try:
        with checked_stdout():
            app(expand_words(sys.argv[1:]))
    except ReaderGone as error:
        sys.exit(error.exit_code)
    except ToolkitError as error:
        typer.echo(f"error: {error}", err=True)
        sys.exit(error.exit_code)


if __name__ == "__main__":
    main()
