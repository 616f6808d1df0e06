"""The whole run configuration and the rules between its sections."""

import re

from pydantic import Field, ValidationInfo, field_validator, model_validator
from typing_extensions import Self

from toolkit.backends.strategies import Accumulation, Precision
from toolkit.config.sections import (
    BatchConfig,
    DataConfig,
    ModelConfig,
    NamedPath,
    OptimizerConfig,
    Section,
    TrainingConfig,
)

RUN_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")


class RunConfig(Section):
    """Everything that decides what a run learns, and where it writes."""

    model: ModelConfig = ModelConfig()
    data: DataConfig = DataConfig()
    batch: BatchConfig = BatchConfig()
    accumulation: Accumulation = "replicated"
    """When gradients are communicated. `replicated` is the default since every strategy has it."""
    precision: Precision = "fp32"
    """Compute in fp32, bf16 or fp16; the optimizer's weights are fp32 in any case."""
    seed: int = Field(default=1337, ge=0, lt=2**32)
    """Fixes the initial weights, the data order and dropout."""
    output_dir: NamedPath = "runs"
    """Folder that holds the run folders."""
    run_name: str = "run"
    """Name of the run folder; left out, the configuration file's name without its ending."""
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

    @field_validator("run_name")
    @classmethod
    def _run_name_is_plain(cls, name: str) -> str:
        if not RUN_NAME.fullmatch(name):
            raise ValueError(
                f"run_name must be up to 100 letters, digits, '.', '_' or '-' and start with a "
                f"letter or digit, got {name[:120]!r}"
            )
        return name

    @field_validator("output_dir")
    @classmethod
    def _output_dir_is_literal(cls, path: str) -> str:
        if path.startswith("~") or "$" in path or "\0" in path:
            raise ValueError(
                f"output_dir is taken literally except for '~', the home folder: '$', NUL and an "
                f"unknown '~user' are refused, got {path!r}"
            )
        return path

    @model_validator(mode="after")
    def _sections_agree(self) -> Self:
        problems = []
        if self.optimizer.warmup_steps > self.training.steps:
            problems.append(
                f"optimizer.warmup_steps {self.optimizer.warmup_steps} is beyond "
                f"training.steps {self.training.steps}"
            )
        if self.training.eval_every and not self.data.val:
            problems.append(
                f"training.eval_every is {self.training.eval_every}, but data.val names no shards"
            )
        if self.batch.tokens_per_step % self.data.seq_len:
            problems.append(
                f"batch.tokens_per_step {self.batch.tokens_per_step} is no multiple of "
                f"data.seq_len {self.data.seq_len}"
            )
        if problems:
            raise ValueError("\n".join(problems))
        return self
