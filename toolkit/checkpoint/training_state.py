"""Where a run is, and whether a configuration means the same run: everything but the tensors."""

import json
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from toolkit.config import dotted_values
from toolkit.errors import UntrustedError, UsageError

STATE = "state.json"
_VERSION = 2
# Data order, dropout and shapes follow from these; with another value it is another run.
_FIXED = (
    "model.n_layer",
    "model.n_head",
    "model.n_embd",
    "model.block_size",
    "model.vocab_size",
    "data.seq_len",
    "data.shuffle",
    "batch.tokens_per_step",
    "seed",
    "optimizer.name",
)
# Where a run is kept and how long it runs do not change what it learned so far.
_SILENT = ("model.preset", "output_dir", "run_name", "data.train", "data.val", "training.stop_at")


@dataclass(frozen=True)
class TrainingState:
    """What a run is beside its tensors; data order and dropout follow from seed and steps.

    Attributes:
        step: completed steps, which the schedule goes by.
        data_step: global batches taken from the data; beyond `step` where a window was skipped.
        updates: optimizer updates; below `step` where one was skipped as non-finite.
        tokens: trained on so far.
        moments: whether there are AdamW moments.
        loss_scale: of fp16, see `EngineState.loss_scale`.
        strategy, world_size: what wrote it; it can be read under any other.
        shapes: of every whole parameter.
        config: the resolved run configuration.
        data: `TokenStream.fingerprint` of the training data.
        versions: of Python and the packages that matter.
    """

    step: int
    data_step: int
    updates: int
    tokens: int
    moments: bool
    loss_scale: dict[str, float] | None
    strategy: str
    world_size: int
    shapes: dict[str, list[int]]
    config: dict[str, Any]
    data: dict[str, Any]
    versions: dict[str, str]

    @classmethod
    def after(
        cls,
        step: int,
        *,
        shapes: dict[str, list[int]],
        strategy: str = "single",
        config: dict[str, Any] | None = None,
    ) -> "TrainingState":
        """Return the state after `step` updates with AdamW on one process, of no run's data."""
        return cls(
            step=step,
            data_step=step,
            updates=step,
            tokens=0,
            moments=step > 0,
            loss_scale=None,
            strategy=strategy,
            world_size=1,
            shapes=shapes,
            config=config or {},
            data={},
            versions={},
        )

    def to_json(self) -> str:
        """Return the text of `state.json`."""
        return json.dumps({"version": _VERSION, **asdict(self)}, indent=1) + "\n"


def read_training_state(checkpoint: Path) -> TrainingState:
    """Return the training state of a verified checkpoint.

    Raises:
        UntrustedError: another version of this toolkit wrote it, or it is no state at all.
    """
    path = checkpoint / STATE
    try:
        found = json.loads(path.read_text())
        version = found.pop("version", 1)
    except (OSError, ValueError, AttributeError, TypeError):
        raise UntrustedError(f"{path} cannot be read") from None
    if version != _VERSION:
        raise UntrustedError(
            f"{path} is of version {version}, this toolkit reads version {_VERSION}; resume "
            "with the toolkit that wrote it, or choose another run_name"
        )
    expected = {field.name for field in fields(TrainingState)}
    if differing := expected ^ found.keys():
        raise UntrustedError(f"{path} is no state: it differs in '{min(differing)}'")
    return TrainingState(**found)


def compare_runs(
    checkpoint: Path, found: TrainingState, config: dict[str, Any], data: dict[str, Any]
) -> list[str]:
    """Return the differences between a checkpoint's configuration and this start's, as lines.

    Raises:
        UsageError: a difference makes it another run.
    """
    before, now = dotted_values(found.config), dotted_values(config)
    for key in _FIXED:
        if before.get(key) != now.get(key):
            raise UsageError(
                f"{checkpoint} was trained with {key} {before.get(key)}, the configuration has "
                f"{now.get(key)}; set it back, or choose another run_name to start afresh"
            )
    if found.data and found.data != data:
        raise UsageError(
            f"{checkpoint} was trained on other data ({found.data['tokens']:,} tokens, here "
            f"{data['tokens']:,}) than data.train names; name the same shards, or choose another "
            "run_name to start afresh"
        )
    return [
        f"{key} {before.get(key)} -> {now.get(key)}"
        for key in sorted(before.keys() | now.keys())
        if key not in _SILENT and before.get(key) != now.get(key)
    ]
