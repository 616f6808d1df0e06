"""Configurations of the error table, as rows of the CSV files beside this one."""

import csv
from pathlib import Path
from typing import Any, Literal, cast

from pydantic import BaseModel, ConfigDict

from toolkit.engines.strategies import Accumulation, Precision, Strategy
from toolkit.model.sizes import PRESETS, ModelSizes, preset_sizes
from toolkit.program.settings import Device, StepSettings

FOLDER = Path(__file__).parent


class Configuration(BaseModel):
    """One row: what is trained, how, and against which oracle the formula is held.

    Fields with a default are those of `StepSettings` that the loop leaves alone.
    """

    model_config = ConfigDict(frozen=True)

    method: Literal["trace", "allocator"]
    strategy: Strategy
    accumulation: Accumulation
    world_size: int
    model: str
    micro_batch_size: int
    seq_len: int
    grad_accum_steps: int
    precision: Precision
    optimizer: Literal["adamw", "sgd"]
    activation_checkpointing: bool
    loss: Literal["plain", "chunked"]
    dropout: float
    foreach: bool = False
    gradient_as_bucket_view: bool = True
    set_to_none: bool | None = None
    attention: Literal["flash", "math"] = "flash"
    compile: bool = False

    @classmethod
    def from_row(cls, row: dict[str, str]) -> "Configuration":
        """Read a row of text; an empty cell is the default."""
        return cls.model_validate({name: text for name, text in row.items() if text})

    def row(self) -> dict[str, str]:
        """Return the fields as text."""
        return {n: "" if value is None else str(value) for n, value in self.model_dump().items()}

    @property
    def tokens(self) -> int:
        """Tokens of one micro-step on one rank."""
        return self.micro_batch_size * self.seq_len

    def sizes(self) -> ModelSizes:
        """Return the model's sizes."""
        if self.model in PRESETS:
            return preset_sizes(cast(Any, self.model))
        return ModelSizes(*map(int, self.model.split()))

    def settings(self, *, device: Device) -> StepSettings:
        """Return what the formula works with."""
        fields = self.model_dump(exclude={"method", "model", "attention"})
        return StepSettings(
            **fields,
            sizes=self.sizes(),
            # The shipped launch file of hybrid sharding has two replica groups.
            replicas=2 if self.strategy == "hsdp" else 1,
            device=device,
            attention="math" if device == "cpu" and self.dropout else self.attention,
        )


def load(name: str) -> list[Configuration]:
    """Return the rows of one file."""
    with (FOLDER / f"{name}.csv").open() as file:
        return [Configuration.from_row(row) for row in csv.DictReader(file)]
