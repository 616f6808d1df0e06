"""The whole run configuration and the rules between its sections."""

import re

from pydantic import Field, ValidationInfo, field_validator

from toolkit.config.accumulation import AccumulationKey
from toolkit.config.section import NamedPath, Section
from toolkit.config.sections import (
    BatchConfig,
    DataConfig,
    ModelConfig,
    OptimizerConfig,
)
from toolkit.config.training_section import TrainingConfig
from toolkit.engines.mixture import Budget, Mixture, check_units
from toolkit.engines.reduction import Reduce
from toolkit.engines.strategies import Accumulation, Precision
from toolkit.errors import UsageError

_FOLDER_NAME = re.compile(r"(?![.~$ -])[^/\\]{1,100}(?<! )")


def is_run_name(name: str) -> bool:
    """Whether a name is one visible folder's, and no option or variable on a command line."""
    return bool(_FOLDER_NAME.fullmatch(name)) and name.isprintable()


class RunConfig(Section):
    """Everything that decides what a run learns, and where it writes."""

    model: ModelConfig = ModelConfig()
    data: DataConfig = DataConfig()
    batch: BatchConfig = BatchConfig()
    accumulation: AccumulationKey = "replicated"
    """When gradients are communicated: for all units alike, or under FSDP2 unit by unit, the blocks
    by number and `root` for the rest, or as many units as a size holds beyond `sharded`; `auto` is
    the fastest of what fits the device.
    `replicated` is the default since every strategy has it."""
    reduce: Reduce | None = None
    """What gradients are sent as when they are reduced: `bf16` halves the bytes and rounds every
    partial sum, `bf16-fp32sum` adds up in fp32; null takes the latter where it loses nothing, which
    is FSDP2 in bf16 where each micro-step is reduced, and fp32 elsewhere. `fp32-exchange` is for
    gloo, whose reduce-scatter sends twice as much."""
    precision: Precision = "fp32"
    """Compute in fp32, bf16 or fp16; the optimizer's weights are fp32 in any case."""
    seed: int = Field(default=1337, ge=0, lt=2**32)
    """Fixes the initial weights, the data order and dropout."""
    output_dir: NamedPath = "runs"
    """Folder that holds the run folders."""
    run_name: str = "run"
    """Name of the run folder; by default the configuration file's name without its ending."""
    optimizer: OptimizerConfig = OptimizerConfig()
    training: TrainingConfig = TrainingConfig()

    @field_validator("data")
    @classmethod
    def _sequences_fit_the_model(cls, data: DataConfig, info: ValidationInfo) -> DataConfig:
        model: ModelConfig | None = info.data.get("model")
        if model is None:
            return data
        if "seq_len" not in data.model_fields_set:
            return data.model_copy(update={"seq_len": model.block_size})
        if data.seq_len > model.block_size:
            raise ValueError(
                f"data.seq_len {data.seq_len} is above model.block_size {model.block_size}"
            )
        return data

    @field_validator("training")
    @classmethod
    def _copies_can_become_checkpoints(cls, training: TrainingConfig) -> TrainingConfig:
        if training.peer_copy_every and training.checkpoint_every == "never":
            raise ValueError(
                f"training.peer_copy_every {training.peer_copy_every} needs checkpoints, which "
                "copies become after a loss, but training.checkpoint_every is 'never'"
            )
        return training

    @field_validator("accumulation")
    @classmethod
    def _units_are_the_models(
        cls, accumulation: AccumulationKey, info: ValidationInfo
    ) -> AccumulationKey:
        model: ModelConfig | None = info.data.get("model")
        if model is not None:
            try:
                check_units(accumulation, model.n_layer)
            except UsageError as error:
                raise ValueError(str(error)) from None
        return accumulation

    @field_validator("run_name")
    @classmethod
    def _run_name_is_plain(cls, name: str) -> str:
        if not is_run_name(name):
            raise ValueError(
                "run_name must be up to 100 printable characters, none of them '/' or '\\', not "
                "begin with '.', '-', '~', '$' or a space, and not end with a space, got "
                f"{name[:120]!r}"
            )
        return name

    @property
    def settled_accumulation(self) -> Accumulation | Mixture:
        """The accumulation, once a budget has been spent (`toolkit.program.settings`)."""
        assert not isinstance(self.accumulation, Budget)
        return self.accumulation

    def notes(self) -> list[str]:
        """Return a sentence for each value that another one leaves without its effect."""
        training, warmup_steps = self.training, self.optimizer.warmup_steps
        notes = []
        if warmup_steps > training.steps:
            notes.append(
                f"optimizer.warmup_steps {warmup_steps:,} is beyond training.steps "
                f"{training.steps:,}: the run ends in warm-up, at a learning rate of "
                f"{self.optimizer.lr * training.steps / warmup_steps:.3g}"
            )
        if training.stop_at is not None and training.stop_at > training.steps:
            notes.append(
                f"training.stop_at {training.stop_at:,} is beyond training.steps "
                f"{training.steps:,}: the run ends after {training.steps:,}"
            )
        if training.eval_every and not self.data.val:
            notes.append(
                f"training.eval_every is {training.eval_every:,}, but data.val names no shards: "
                "no validation loss"
            )
        if training.sample_tokens and not training.eval_every:
            notes.append(
                f"training.sample_tokens is {training.sample_tokens:,}, but samples come with "
                "evaluations and training.eval_every is 0: no samples"
            )
        return notes
