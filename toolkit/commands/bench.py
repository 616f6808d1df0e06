"""`toolkit bench`: sweeps of strategies, the machine's collectives, and the report on both."""

import os
import sys
from pathlib import Path
from typing import Annotated, NoReturn

import typer

bench = typer.Typer(no_args_is_help=True, help="Measure strategies on this machine; in a checkout.")


@bench.command()
def sweep(
    name: Annotated[
        str,
        typer.Argument(help="One of benchmarks/sweeps, or a file of your own.", metavar="SWEEP"),
    ],
    out: Annotated[Path, typer.Option(help="Folder for the records; resumed if there.")],
    retry_failed: Annotated[
        bool, typer.Option("--retry-failed", help="Measure what failed or was skipped again.")
    ] = False,
) -> None:
    """Measure all cases of a sweep, or those that are not yet measured.

    Example: toolkit bench sweep cpu-quick --out runs/bench
    """
    _become("sweep", name, "--out", str(out), *["--retry-failed"] * retry_failed)


@bench.command()
def collectives(
    folder: Annotated[Path, typer.Argument(help="Of a sweep.", metavar="FOLDER")],
) -> None:
    """Measure the collectives that predictions for a sweep are made from.

    Example: toolkit bench collectives runs/bench
    """
    _become("collectives", "--sweep", str(folder))


@bench.command()
def report(
    folder: Annotated[Path, typer.Argument(help="Of a sweep.", metavar="FOLDER")],
    out: Annotated[
        Path | None, typer.Option(help="Folder to write to.", show_default="FOLDER/report")
    ] = None,
) -> None:
    """Write a sweep's records as a page, a table and pictures.

    Example: toolkit bench report runs/bench
    """
    _become("report", str(folder), "--out", str(out or folder / "report"))


def _become(module: str, *words: str) -> NoReturn:
    """Let this process be the benchmark's, so that signals and the exit code are its own."""
    from toolkit.errors import UsageError
    from toolkit.shipped import IS_INSTALLED, ROOT

    if IS_INSTALLED:
        raise UsageError("toolkit bench needs a checkout of the project; the package has no sweeps")
    path = os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
    command = [sys.executable, "-m", f"benchmarks.{module}", *words]
    os.execve(sys.executable, command, {**os.environ, "PYTHONPATH": path})
