"""Configurations of the error table, as rows of the CSV files beside this one."""

import csv
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any, Literal, cast

from toolkit.model.sizes import PRESETS, ModelSizes, preset_sizes
from toolkit.program.settings import Device, StepSettings

FOLDER = Path(__file__).parent
_TRUTH: dict[str, bool | None] = {"yes": True, "True": True, "no": False, "False": False, "": None}


@dataclass(frozen=True)
class Configuration:
    """One row: what is trained, how, and against which oracle the formula is held.

    Fields with a default are those of `StepSettings` that the loop leaves alone.
    """

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
    foreach: bool = False
    gradient_as_bucket_view: bool = True
    set_to_none: bool | None = None
    attention: str = "flash"
    compile: bool = False

    @classmethod
    def from_row(cls, row: dict[str, str]) -> "Configuration":
        """Read a row of text."""
        parsed = {f.name: _parse(f.type, row[f.name]) for f in fields(cls) if f.name in row}
        return cls(**parsed)

    def row(self) -> dict[str, str]:
        """Return the fields as text."""
        return {name: "" if value is None else str(value) for name, value in asdict(self).items()}

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
            foreach=self.foreach,
            gradient_as_bucket_view=self.gradient_as_bucket_view,
            set_to_none=self.set_to_none,
            compile=self.compile,
            device=device,
            attention="math" if device == "cpu" and self.dropout else cast(Any, self.attention),
        )


def _parse(kind: Any, text: str) -> Any:
    if kind in (bool, bool | None):
        return _TRUTH[text]
    return kind(text) if kind in (int, float) else text


def load(name: str) -> list[Configuration]:
    """Return the rows of one file."""
    with (FOLDER / f"{name}.csv").open() as file:
        return [Configuration.from_row(row) for row in csv.DictReader(file)]
