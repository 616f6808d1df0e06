"""A published row of throughput, and what any step that stands for one has."""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from toolkit.program.events import Program
from toolkit.program.settings import StepSettings
from toolkit.program.step import write_step


@dataclass(frozen=True)
class Published(ABC):
    """A row, by the columns that `published_*.csv` have in common."""

    row: dict[str, str]

    def _int(self, name: str) -> int:
        return int(self.row[name])

    @cached_property
    @abstractmethod
    def settings(self) -> StepSettings:
        """The step that stands for it."""

    @property
    def batch(self) -> dict[str, Any]:
        """The batch and checkpointing, as fields of `StepSettings`."""
        return {
            "world_size": self._int("n_gpus"),
            "micro_batch_size": self._int("micro_batch"),
            "seq_len": self._int("seq"),
            "grad_accum_steps": self._int("grad_accum"),
            "activation_checkpointing": self.row["activation_checkpointing"] == "full",
        }

    @cached_property
    def program(self) -> Program:
        """The step's events."""
        return write_step(self.settings)

    @cached_property
    def step_s(self) -> float:
        """Published seconds of a step."""
        step = self.settings
        tokens = step.micro_batch_size * step.seq_len * step.grad_accum_steps
        return tokens / float(self.row["tokens_per_s_per_gpu"])
