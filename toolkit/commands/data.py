"""`toolkit data`: text to token shards, and back to trust in them."""

from pathlib import Path
from typing import Annotated

import typer

data = typer.Typer(help="Text to token shards, and back to trust in them.", no_args_is_help=True)


@data.command()
def prepare(
    inputs: Annotated[list[Path], typer.Argument(metavar="INPUT...", show_default=False)],
    out: Annotated[Path, typer.Option(help="Folder for the shards and their index.")],
    skip_bad: Annotated[
        bool, typer.Option("--skip-bad", help="Leave out bad documents and count them.")
    ] = False,
    shard_tokens: Annotated[int, typer.Option(help="Tokens per shard.")] = 100_000_000,
    processes: Annotated[
        int | None, typer.Option(help="Processes that tokenise.", show_default="all cores")
    ] = None,
) -> None:
    """Turn text, Markdown and JSON-lines into token shards."""
    from toolkit.data.prepare import prepare as run

    prepared = run(inputs, out, skip_bad=skip_bad, shard_tokens=shard_tokens, processes=processes)
    typer.echo(prepared.summary)


@data.command()
def verify(folder: Annotated[Path, typer.Argument(metavar="DIR", show_default=False)]) -> None:
    """Check prepared shards against their hashes, those of others as far as that is possible."""
    from toolkit.data.verify import verify_shards

    typer.echo(verify_shards(folder).summary)


@data.command()
def default(out: Annotated[Path, typer.Option(help="Folder for train/ and val/.")]) -> None:
    """Fetch and prepare the text that the demo run trains on."""
    from toolkit.data.default_text import prepare_default_text

    typer.echo(prepare_default_text(out).summary)
