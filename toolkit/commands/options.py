"""Options that several verbs have in common."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from toolkit.config import RunConfig

Overrides = Annotated[
    list[str] | None, typer.Argument(metavar="[section.key=value]...", show_default=False)
]
RunFile = Annotated[Path, typer.Option(help="The run configuration.", metavar="RUN.yaml")]
RunFileOrDefaults = Annotated[
    Path | None, typer.Option(help="A run configuration; else the defaults.", metavar="RUN.yaml")
]
Preset = Annotated[str | None, typer.Option(help="Same as model.preset=...")]
MicroBatchSize = Annotated[int | None, typer.Option(help="Same as batch.micro_batch_size=...")]
PerMachine = Annotated[
    int,
    typer.Option(
        help="Ranks per machine, a replica group of hybrid sharding; one machine has two.",
        min=1,
        max=1_000_000,
    ),
]
Gpu = Annotated[
    str | None,
    typer.Option(help="The GPU it has to fit: A100-80, 4090, nvidia-smi's name, or 24GiB."),
]
RunPath = Annotated[
    Path, typer.Argument(metavar="RUN", help="A run folder or its YAML.", show_default=False)
]
TrainedModel = Annotated[
    Path,
    typer.Argument(
        metavar="RUN",
        help="A run folder, its YAML, a checkpoint, or a GPT-2 folder of transformers.",
        show_default=False,
    ),
]
Tokenizer = Annotated[
    str | None,
    typer.Option(
        help="A tiktoken name, tokenizer.json or SentencePiece file.",
        show_default="that of the training data",
    ),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]


def load_run(
    config: Path | None,
    overrides: Sequence[str],
    *,
    preset: str | None,
    micro_batch_size: int | None,
) -> "RunConfig":
    """Return the configuration of a file or of the defaults, with what the options change in it.

    Raises:
        UsageError: as `load_run_config`, with the options named as they were written.
    """
    from toolkit.config import load_run_config
    from toolkit.errors import UsageError

    short = {}
    if preset is not None:
        short[f"model.preset={preset}"] = f"--preset {preset}"
    if micro_batch_size is not None:
        short[f"batch.micro_batch_size={micro_batch_size}"] = (
            f"--micro-batch-size {micro_batch_size}"
        )
    try:
        return load_run_config(config, [*short, *overrides])
    except UsageError as error:
        sentence = str(error)
        for override, written in short.items():
            sentence = sentence.replace(f"override '{override}'", written)
        raise UsageError(sentence) from None
