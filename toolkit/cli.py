"""The `toolkit` command: its verbs, and exit codes for errors."""

import re
import sys
from typing import Annotated, Any

import typer

from toolkit import __version__
from toolkit.commands.audit import audit
from toolkit.commands.bench import bench
from toolkit.commands.check import check
from toolkit.commands.checkpoint import checkpoint
from toolkit.commands.compare import compare
from toolkit.commands.config import config
from toolkit.commands.data import data
from toolkit.commands.estimate import estimate
from toolkit.commands.evaluate import evaluate
from toolkit.commands.generate import generate
from toolkit.commands.init import init
from toolkit.commands.plan import plan
from toolkit.commands.plot import plot
from toolkit.commands.rehearse import rehearse
from toolkit.commands.runs import runs
from toolkit.commands.summary import summary
from toolkit.commands.train import train
from toolkit.commands.verify import verify
from toolkit.commands.watch import watch
from toolkit.errors import ReaderGone, ToolkitError
from toolkit.home import expand_words
from toolkit.standard_output import checked_stdout

# The root of those that Typer raises for wrong words, of which it exports but this kind.
_WrongWords: Any = typer.BadParameter.__bases__[0]

_JUDGED_VALUE = re.compile(r"invalid value for '(.+?)': Input should be ([^,]+).*")

app = typer.Typer(
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.command()(init)
app.command()(config)
app.command()(train)
app.command()(summary)
app.command()(check)
app.command()(audit)
app.command()(verify)
app.command()(rehearse)
app.command()(estimate)
app.command()(plan)
app.command()(generate)
app.command("eval")(evaluate)
app.command()(plot)
app.command()(compare)
app.command()(watch)
app.command()(runs)
app.add_typer(bench, name="bench")
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


def _plain(sentence: str) -> str:
    """Return Typer's sentence without the words of pydantic, which judges values for it."""
    sentence = sentence.replace(": Value error, ", ": ")
    return _JUDGED_VALUE.sub(r"\1 must be \2", sentence)


def main() -> None:
    """Run the command; an error a person can cause is one sentence and an exit code."""
    try:
        with checked_stdout():
            sys.exit(app(expand_words(sys.argv[1:]), standalone_mode=False) or 0)
    except ReaderGone as error:
        sys.exit(error.exit_code)
    except ToolkitError as error:
        typer.echo(f"error: {error}", err=True)
        sys.exit(error.exit_code)
    except _WrongWords as error:
        if sentence := error.format_message():  # there is none beside the help of a group
            typer.echo(f"error: {_plain(sentence[0].lower() + sentence[1:])}", err=True)
        sys.exit(error.exit_code)


if __name__ == "__main__":
    main()
