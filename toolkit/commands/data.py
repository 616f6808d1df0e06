"""`toolkit data`: text to token shards, and back to trust in them."""

from pathlib import Path
from typing import Annotated, Any, Literal

import typer

data = typer.Typer(help="Text to token shards, and back to trust in them.", no_args_is_help=True)

Inputs = Annotated[
    list[str],
    typer.Argument(
        metavar="INPUT...",
        help="Files, folders, patterns, - for standard input, a folder that datasets saved, "
        "hf:NAME[@CONFIGURATION][:SPLIT].",
        show_default=False,
    ),
]
NearDuplicates = Annotated[
    Literal["keep", "report", "remove"],
    typer.Option(help="Documents that resemble an earlier one."),
]


@data.command()
def prepare(
    inputs: Inputs,
    out: Annotated[Path, typer.Option(help="Folder for the shards and their index.")],
    field: Annotated[
        str, typer.Option(help="The field or column of a document's text, in tables.")
    ] = "text",
    ext: Annotated[
        str | None,
        typer.Option(help="Further files that are text, comma-separated: .py,.rs"),
    ] = None,
    tokenizer: Annotated[
        str,
        typer.Option(help="A tiktoken name, a tokenizer.json or a SentencePiece .model file."),
    ] = "gpt2",
    val_fraction: Annotated[
        float, typer.Option(help="Of the documents, into OUT/val; the others into OUT/train.")
    ] = 0.0,
    near_duplicates: NearDuplicates = "keep",
    skip_bad: Annotated[
        bool, typer.Option("--skip-bad", help="Skip bad documents and count them.")
    ] = False,
    shard_tokens: Annotated[
        int, typer.Option(help="Tokens per shard.", min=1, max=2**31 - 1)
    ] = 100_000_000,
    processes: Annotated[
        int | None, typer.Option(help="Processes that tokenise.", min=1, show_default="all cores")
    ] = None,
) -> None:
    """Turn text, JSON-lines, CSV, Parquet, .gz and .zst of these, or datasets into token shards.

    Example: toolkit data prepare 'books/*.jsonl.gz' --out data --val-fraction 0.01
    """
    from toolkit.data.encode import Encoding
    from toolkit.data.prepare import prepare as prepare_all
    from toolkit.data.prepare_split import prepare_split
    from toolkit.data.survey import SkippableError
    from toolkit.errors import UsageError

    settings: dict[str, Any] = {
        "skip_bad": skip_bad,
        "shard_tokens": shard_tokens,
        "processes": processes,
        "encoding": Encoding(tokenizer, field),
        "extensions": ext.split(",") if ext else (),
    }
    try:
        if val_fraction == 0 and near_duplicates == "keep":
            typer.echo(prepare_all(inputs, out, **settings).summary)
        else:
            split = prepare_split(
                inputs, out, val_fraction=val_fraction, near_duplicates=near_duplicates, **settings
            )
            typer.echo(split.summary)
    except SkippableError as error:
        raise UsageError(f"{error}; --skip-bad skips such documents") from None


@data.command()
def verify(
    folders: Annotated[list[Path], typer.Argument(metavar="DIR...", show_default=False)],
) -> None:
    """Check prepared shards against their hashes, those of others as far as that is possible.

    Of several folders, documents that two of them share are reported.

    Example: toolkit data verify data/train data/val
    """
    from toolkit.data.shared_documents import describe_shared
    from toolkit.data.verify import verify_shards

    for folder in folders:
        typer.echo(verify_shards(folder).summary)
    if len(folders) > 1:
        for line in describe_shared({str(folder): folder for folder in folders}):
            typer.echo(line)


@data.command()
def default(out: Annotated[Path, typer.Option(help="Folder for train/ and val/.")]) -> None:
    """Fetch and prepare the text that the demo run trains on.

    Example: toolkit data default --out data/default
    """
    from toolkit.data.default_text import prepare_default_text

    typer.echo(prepare_default_text(out).summary)
