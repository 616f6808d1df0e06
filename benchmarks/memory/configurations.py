"""Configurations of the error table, as rows of `held_out.csv` and `tuned.csv`."""

import csv
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal, cast

from toolkit.memory.settings import Device, StepSettings
from toolkit.model.sizes import PRESETS, ModelSizes, preset_sizes

FOLDER = Path(__file__).parent


@dataclass(frozen=True)
class Configuration:
    """One row: what is trained, how, and against which oracle the formula is held."""

    method: Literal["trace", "allocator"]
    strategy: str
    accumulation: str
    world_size: int
    model: str
    micro_batch_size: int
    seq_len: int
    grad_accum_steps: int
    precision: str
    optimizer: str
    activation_checkpointing: bool
    loss: str
    dropout: float

    @classmethod
    def from_row(cls, row: dict[str, Any]) -> "Configuration":
        """Read a row of text, or what `row` gave."""
        numbers = ("world_size", "micro_batch_size", "seq_len", "grad_accum_steps")
        values = {name: int(value) if name in numbers else value for name, value in row.items()}
        values["activation_checkpointing"] = row["activation_checkpointing"] in (
            "yes",
            "True",
            True,
        )
        values["dropout"] = float(row["dropout"])
        return cls(**values)

    def row(self) -> dict[str, Any]:
        """Return the fields."""
        return asdict(self)

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
        return StepSettings(
            sizes=self.sizes(),
            strategy=cast(Any, self.strategy),
            accumulation=cast(Any, self.accumulation),
            world_size=self.world_size,
            # The shipped launch file of hybrid sharding has two replica groups.
            replicas=2 if self.strategy == "hsdp" else 1,
            micro_batch_size=self.micro_batch_size,
            seq_len=self.seq_len,
            grad_accum_steps=self.grad_accum_steps,
            precision=cast(Any, self.precision),
            optimizer=cast(Any, self.optimizer),
            activation_checkpointing=self.activation_checkpointing,
            loss=cast(Any, self.loss),
            dropout=self.dropout,
            device=device,
            attention="math" if device == "cpu" and self.dropout else "flash",
        )


def load(name: str) -> list[Configuration]:
    """Return the rows of `held_out` or `tuned`."""
    with (FOLDER / f"{name}.csv").open() as file:
        return [Configuration.from_row(row) for row in csv.DictReader(file)]
