"""`toolkit init`: a commented configuration."""

from pathlib import Path
from typing import Annotated

import typer

from toolkit.commands.options import Overrides
from toolkit.errors import UsageError


def init(
    file: Annotated[Path, typer.Argument(metavar="FILE.yaml", show_default=False)],
    overrides: Overrides = None,
    preset: Annotated[
        str, typer.Option(help="One of configs/train, whose values are written.")
    ] = "gpt2",
) -> None:
    """Write a run configuration in which every key is explained.

    Example: toolkit init my.yaml --preset gpt2-medium data.train=data/books/train
    """
    from toolkit.config import load_run_config
    from toolkit.config.template import commented
    from toolkit.shipped import ROOT

    shipped = ROOT / "configs" / "train"
    known = sorted(path.stem for path in shipped.glob("*.yaml"))
    if preset not in known:
        raise UsageError(f"unknown preset '{preset}'; there are {', '.join(known)}")
    if file.suffix not in (".yaml", ".yml"):
        raise UsageError(f"{file}: the name of a run configuration ends in .yaml")
    text = commented(load_run_config(shipped / f"{preset}.yaml", overrides or []))
    try:
        with file.open("x") as output:
            output.write(text)
    except FileExistsError:
        raise UsageError(f"{file}: is there already; choose another name") from None
    except OSError as error:
        raise UsageError(f"{file}: cannot be written: {error.strerror}") from None
    typer.echo(f"{file}; next: toolkit estimate --config {file}")
