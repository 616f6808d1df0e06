"""`toolkit checkpoint`: what a run can resume from, whether it is intact, and exchange."""

from pathlib import Path
from typing import Annotated

import typer

from toolkit.commands.options import Overrides, RunFile

checkpoint = typer.Typer(
    help="What a run can resume from, and weights in transformers' layout.", no_args_is_help=True
)

RunFolder = Annotated[
    Path, typer.Argument(metavar="RUN", help="<output_dir>/<run_name>", show_default=False)
]


@checkpoint.command("list")
def _list(run: RunFolder) -> None:
    """List the checkpoints of a run, the newest last.

    Example: toolkit checkpoint list runs/my
    """
    from toolkit.checkpoint.listing import list_checkpoints

    for line in list_checkpoints(run):
        typer.echo(line)


@checkpoint.command("verify")
def _verify(run: RunFolder) -> None:
    """Check every byte of a run's checkpoints against their manifests.

    Example: toolkit checkpoint verify runs/my
    """
    from toolkit.checkpoint.listing import verify_checkpoints
    from toolkit.errors import UntrustedError

    good, problems = verify_checkpoints(run)
    for line in good:
        typer.echo(line)
    for line in problems:
        typer.echo(line, err=True)
    raise typer.Exit(UntrustedError.exit_code if problems else 0)


@checkpoint.command("export")
def _export(
    run: RunFolder,
    out: Annotated[
        Path | None, typer.Option(help="Folder to write to.", show_default="RUN/export")
    ] = None,
    step: Annotated[
        int | None, typer.Option(help="Which checkpoint.", show_default="the newest good one")
    ] = None,
) -> None:
    """Write the weights as one safetensors file, beside it what transformers needs to use them.

    Example: toolkit checkpoint export runs/my --out exported
    """
    from toolkit.training.exchange import export_checkpoint

    exported = export_checkpoint(run, out, step=step)
    typer.echo(exported.weights)
    typer.echo(f"beside it {', '.join(exported.beside)}", err=True)
    for remark in exported.remarks:
        typer.echo(remark, err=True)
    typer.echo(f"next: toolkit generate {exported.weights.parent} --prompt TEXT", err=True)


@checkpoint.command("import")
def _import(
    weights: Annotated[Path, typer.Argument(metavar="WEIGHTS", show_default=False)],
    config: RunFile,
    overrides: Overrides = None,
    trust_checkpoint: Annotated[
        bool, typer.Option("--trust-checkpoint", help="Read a pickle, though it may be hostile.")
    ] = False,
    crop: Annotated[
        bool, typer.Option("--crop", help="Drop positions beyond model.block_size.")
    ] = False,
) -> None:
    """Let a run start from GPT-2 weights in transformers' layout.

    Example: toolkit checkpoint import gpt2/model.safetensors --config my.yaml
    """
    from toolkit.training.exchange import import_weights

    typer.echo(import_weights(weights, config, overrides or [], trust=trust_checkpoint, crop=crop))
    words = " ".join(["--config", str(config), *(overrides or [])])
    typer.echo(f"next: toolkit train --strategy STRATEGY {words}", err=True)
