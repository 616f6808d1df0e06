"""Weights between a run and transformers' layout."""

from collections.abc import Sequence
from functools import partial
from pathlib import Path

from toolkit.checkpoint.export import Exported, export
from toolkit.checkpoint.import_weights import read_weights
from toolkit.checkpoint.listing import choose_checkpoint
from toolkit.checkpoint.state import part_name
from toolkit.checkpoint.store import CheckpointStore
from toolkit.checkpoint.tensors import Entry, write_tensors
from toolkit.checkpoint.training_state import TrainingState, read_training_state
from toolkit.config import load_run_config
from toolkit.errors import SaveError, UsageError
from toolkit.training.metrics import read_metrics
from toolkit.training.run_folder import make_run_folder, sole_user


def export_checkpoint(run: Path, out: Path | None, *, step: int | None) -> Exported:
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
    folder = out or run / "export"
    checkpoints = run / "checkpoints"
    if folder.resolve().is_relative_to(checkpoints.resolve()):
        raise UsageError(f"{folder} is inside {checkpoints}, where nothing but checkpoints may be")
    checkpoint = choose_checkpoint(run, step)
    chosen = read_training_state(checkpoint).step
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
    config = load_run_config(config_file, overrides)
    tensors = read_weights(weights, config.model.sizes(), trust=trust, crop=crop)
    store = CheckpointStore(make_run_folder(config) / "checkpoints")
    with sole_user(store.folder.parent):
        if store.committed():
            raise UsageError(f"{store.folder} holds checkpoints; choose another run_name")
        entries = [
            Entry(f"parameter/{name}/0", (value.numel(),), partial(value.view, -1))
            for name, value in tensors.items()
        ]
        shapes = {name: list(value.shape) for name, value in tensors.items()}
        state = TrainingState.after(
            0, shapes=shapes, strategy="import", config=config.model_dump(mode="json")
        )
        try:
            store.begin(0)
            part = write_tensors(store.partial(0) / part_name(0), entries)
            return store.commit(0, state.to_json(), {part_name(0): part}, keep_last=1)
        except OSError as error:
            store.abandon(0)
            raise SaveError(f"{store.folder}: cannot be written: {error.strerror}") from None
