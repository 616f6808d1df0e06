"""`toolkit checkpoint`: what a run can carry on from, whether it is intact, and exchange."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from toolkit.commands.options import Overrides, RunFile

if TYPE_CHECKING:
    from toolkit.checkpoint.export import Exported

checkpoint = typer.Typer(
    help="What a run can carry on from, and weights in transformers' layout.", no_args_is_help=True
)

RunFolder = Annotated[
    Path, typer.Argument(metavar="RUN", help="<output_dir>/<run_name>", show_default=False)
]


@checkpoint.command("list")
def _list(run: RunFolder) -> None:
    """List the checkpoints of a run, the newest last."""
    for line in list_checkpoints(run):
        typer.echo(line)


@checkpoint.command("verify")
def _verify(run: RunFolder) -> None:
    """Check every byte of a run's checkpoints against their manifests."""
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
    """Write the weights as one safetensors file, beside it what transformers needs to use them."""
    exported = export_checkpoint(run, out, step=step)
    typer.echo(exported.weights)
    typer.echo(f"beside it {', '.join(exported.beside)}", err=True)
    for remark in exported.remarks:
        typer.echo(remark, err=True)


@checkpoint.command("import")
def _import(
    weights: Annotated[Path, typer.Argument(metavar="WEIGHTS", show_default=False)],
    config: RunFile,
    overrides: Overrides = None,
    trust_checkpoint: Annotated[
        bool, typer.Option("--trust-checkpoint", help="Read a pickle, though it may be hostile.")
    ] = False,
    crop: Annotated[
        bool, typer.Option("--crop", help="Leave out positions beyond model.block_size.")
    ] = False,
) -> None:
    """Let a run start from GPT-2 weights in transformers' layout."""
    typer.echo(import_weights(weights, config, overrides or [], trust=trust_checkpoint, crop=crop))


def list_checkpoints(run: Path) -> Iterator[str]:
    """Yield a line for each checkpoint of a run, the newest last; sizes are checked, bytes not.

    Raises:
        UsageError: there is no run, or it has no checkpoint.
    """
    from toolkit.checkpoint.position import read_position
    from toolkit.checkpoint.store import find_damage, read_manifest
    from toolkit.errors import UntrustedError

    for checkpoint in _committed(run):
        try:
            if damage := next(find_damage(checkpoint, rank=None), None):
                raise UntrustedError(damage)
            files = read_manifest(checkpoint)
            position = read_position(checkpoint)
        except UntrustedError as error:
            yield f"{checkpoint.name}  damaged: {error}"
            continue
        size = sum(file.bytes for file in files.values())
        yield (
            f"{checkpoint.name}  {position.tokens:,} tokens, written by {position.strategy} on "
            f"{position.world_size}, {len(files) - 1} "
            f"{'part' if len(files) == 2 else 'parts'}, {size:,} bytes"
        )


def verify_checkpoints(run: Path) -> tuple[list[str], list[str]]:
    """Read every byte of a run's checkpoints; return lines for the good and for the bad ones.

    Raises:
        UsageError: there is no run, or it has no checkpoint.
    """
    from toolkit.checkpoint.store import find_damage

    good, problems = [], []
    for checkpoint in _committed(run):
        damage = list(find_damage(checkpoint))
        problems += damage
        if not damage:
            good.append(f"{checkpoint} is what was written")
    return good, problems


def export_checkpoint(run: Path, out: Path | None, *, step: int | None) -> "Exported":
    """Write a checkpoint's weights for transformers, with its tokenizer and a model card.

    Args:
        run: a run folder.
        out: the folder to write to, `export` in the run folder if None.
        step: which checkpoint; the newest good one if None.

    Raises:
        UsageError: there is no such checkpoint, or `out` is among the run's checkpoints.
        UntrustedError: it is damaged.
        SaveError: the weights cannot be written.
    """
    from toolkit.checkpoint.export import export
    from toolkit.checkpoint.position import read_position
    from toolkit.errors import UsageError
    from toolkit.training.metrics import read_metrics

    folder = out or run / "export"
    checkpoints = run / "checkpoints"
    if folder.resolve().is_relative_to(checkpoints.resolve()):
        raise UsageError(f"{folder} is inside {checkpoints}, where nothing but checkpoints may be")
    checkpoint = _choose(run, step)
    chosen = read_position(checkpoint).step
    evaluations = [
        record
        for record in read_metrics(run / "metrics.jsonl")
        if record["kind"] == "eval" and record["step"] == chosen
    ]
    return export(checkpoint, folder, evaluation=evaluations[-1] if evaluations else None)


def import_weights(
    weights: Path,
    config_file: Path,
    overrides: Sequence[str],
    *,
    trust: bool,
    crop: bool = False,
) -> Path:
    """Make weights in transformers' layout the state that a run starts from; return it.

    `trust` and `crop` are those of `read_weights`.

    Raises:
        UsageError: the weights are another model's, or the run has checkpoints of its own.
        UntrustedError: the weights cannot be trusted.
        SaveError: the state cannot be written.
    """
    from functools import partial

    from toolkit.checkpoint.import_weights import read_weights
    from toolkit.checkpoint.position import Position
    from toolkit.checkpoint.state import part_name
    from toolkit.checkpoint.store import CheckpointStore
    from toolkit.checkpoint.tensors import Entry, write_tensors
    from toolkit.config import load_run_config
    from toolkit.errors import SaveError, UsageError
    from toolkit.training.run_folder import make_run_folder, sole_user

    config = load_run_config(config_file, overrides)
    tensors = read_weights(weights, config.model.sizes(), trust=trust, crop=crop)
    folder = make_run_folder(config)
    store = CheckpointStore(folder / "checkpoints")
    with sole_user(folder):
        if store.committed():
            raise UsageError(f"{store.folder} holds checkpoints; choose another run_name")
        entries = [
            Entry(f"parameter/{name}/0", (value.numel(),), partial(value.view, -1))
            for name, value in tensors.items()
        ]
        shapes = {name: list(value.shape) for name, value in tensors.items()}
        position = Position.after(
            0, shapes=shapes, strategy="import", config=config.model_dump(mode="json")
        )
        try:
            store.begin(0)
            part = write_tensors(store.partial(0) / part_name(0), entries)
            return store.commit(0, position.to_json(), {part_name(0): part}, keep_last=1)
        except OSError as error:
            store.abandon(0)
            raise SaveError(f"{store.folder}: cannot be written: {error.strerror}") from None


def _committed(run: Path) -> list[Path]:
    from toolkit.checkpoint.store import CheckpointStore
    from toolkit.errors import UsageError

    if not run.is_dir():
        raise UsageError(f"{run} is no run folder; give <output_dir>/<run_name>")
    committed = CheckpointStore(run / "checkpoints").committed()
    if not committed:
        raise UsageError(f"{run} holds no checkpoint")
    return committed


def _choose(run: Path, step: int | None) -> Path:
    from toolkit.checkpoint.store import CheckpointStore, find_damage
    from toolkit.errors import UntrustedError, UsageError

    committed = _committed(run)
    if step is None:
        found, _ = CheckpointStore(run / "checkpoints").newest_good()
        assert found is not None
        return found
    checkpoint = run / "checkpoints" / f"step_{step:08d}"
    if checkpoint not in committed:
        steps = ", ".join(str(int(path.name.removeprefix("step_"))) for path in committed)
        raise UsageError(f"{run} has no checkpoint of step {step}; there are {steps}")
    if damage := list(find_damage(checkpoint)):
        raise UntrustedError("; ".join(damage))
    return checkpoint
