"""What a benchmark leaves behind: one JSON object a line, one line per case and repeat.

A line is complete once its newline is there, so a killed benchmark leaves at most an unfinished
last line, which readers pass over and the next writer cuts off.
"""

import os
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import AliasChoices, BaseModel, ConfigDict, Field, ValidationError

from toolkit.config.accumulation import SettledAccumulation
from toolkit.engines.reduction import Reduce
from toolkit.engines.strategies import Precision, Strategy
from toolkit.errors import UsageError
from toolkit.model.sizes import Loss, ModelSizes
from toolkit.prediction.machine_profile import Environment

RECORDS = "records.jsonl"
Count = Annotated[int, Field(ge=1)]


class _Model(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class Case(_Model):
    """What is measured; equal cases are the same measurement.

    Attributes:
        micro_batch_size: sequences per rank and micro-step.
        seq_len: tokens per sequence.
        grad_accum_steps: micro-steps A per optimizer step.
        data: `synthetic` tokens are drawn at random, `real` ones come from prepared shards.
        link_mbit_per_s: rate of the link between ranks in 10^6 bit/s; None where it is the
            machine's own.
    """

    strategy: Strategy
    accumulation: SettledAccumulation
    grad_accum_steps: Count
    micro_batch_size: Count
    seq_len: Count
    world_size: Count
    precision: Precision
    model: ModelSizes
    reduce: Reduce | None = None
    loss: Loss = "plain"
    optimizer: Literal["adamw", "sgd"] = "adamw"
    activation_checkpointing: bool = False
    compile: bool = False
    data: Literal["synthetic", "real"] = "synthetic"
    link_mbit_per_s: float | None = None

    @property
    def tokens_per_micro_step(self) -> int:
        """Tokens in one forward and backward on one rank."""
        return self.micro_batch_size * self.seq_len

    @property
    def tokens_per_step(self) -> int:
        """Tokens of one optimizer step over all ranks."""
        return self.tokens_per_micro_step * self.grad_accum_steps * self.world_size

    @property
    def setting(self) -> dict[str, Any]:
        """Everything but strategy and mode: what cases that are compared have in common."""
        return self.model_dump(exclude={"strategy", "accumulation"})

    @property
    def label(self) -> str:
        """A line for people: `ddp sharded, A 4, 1 x 64 tokens, 2 ranks, fp32, 100 Mbit/s`."""
        words = [
            f"{self.strategy} {self.accumulation}",
            f"A {self.grad_accum_steps}",
            f"{self.micro_batch_size} x {self.seq_len} tokens",
            f"{self.world_size} {'rank' if self.world_size == 1 else 'ranks'}",
            self.precision,
        ]
        words += [f"reduce {self.reduce}"] if self.reduce else []
        words += ["chunked loss"] if self.loss == "chunked" else []
        words += ["compiled"] if self.compile else []
        words += [f"{self.link_mbit_per_s:g} Mbit/s"] if self.link_mbit_per_s else []
        return ", ".join(words)


class Agreement(_Model):
    """The first step beside plain PyTorch's in one process; `tolerance` is relative."""

    loss: float
    reference_loss: float
    grad_norm: float
    reference_grad_norm: float
    tolerance: float
    ok: bool


class Bounds(_Model):
    """Whole numbers from `low` to `high`, where a formula has bounds only."""

    low: int
    high: int


class Traffic(_Model):
    """Collectives of one kind in one optimizer step on one rank; `bytes` of payload."""

    calls: int
    bytes: int


class ExpectedTraffic(_Model):
    """What the formulas give for one kind."""

    calls: int | Bounds
    bytes: int | Bounds


class Split(_Model):
    """Mean seconds per optimizer step, from steps that are instrumented and not among `step_s`."""

    forward_s: float
    backward_s: float
    communication_s: float
    optimizer_s: float


class Record(_Model):
    """One repeat of one case. Measured fields are None where the case failed or was skipped.

    Attributes:
        collectives: counted, by kind: all_reduce, reduce_scatter, all_gather.
        gradient_bytes_held: between micro-steps on the fullest rank; None with a single
            micro-step.
        peak_memory_bytes: of allocated memory, on the fullest rank.
        step_s: seconds of each timed step.
        mfu: share of the devices' peak that the model's arithmetic makes up; None where that peak
            is not known.
        error: why the case failed.
        skipped: why it was not tried.
    """

    # Earlier versions wrote "arm".
    case: Case = Field(validation_alias=AliasChoices("case", "arm"))
    sweep: str | None = None
    repeat: int = 0
    environment: Environment
    agreement: Agreement | None = None
    collectives: dict[str, Traffic] | None = None
    expected_collectives: dict[str, ExpectedTraffic] | None = None
    gradient_bytes_held: int | None = None
    expected_gradient_bytes_held: int | None = None
    peak_memory_bytes: int | None = None
    estimated_peak_memory_bytes: int | None = None
    step_s: list[float] | None = None
    split: Split | None = None
    tokens_per_step: int | None = None
    tokens_per_s: float | None = None
    tokens_per_s_per_gpu: float | None = None
    mfu: float | None = None
    error: str | None = None
    skipped: str | None = None


def append_record(folder: Path, record: Record) -> None:
    """Add a line to the folder's records and see it to the disk."""
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / RECORDS).open("a+b") as file:
        file.seek(0)
        file.truncate(_complete(file.read()))
        file.write(record.model_dump_json().encode() + b"\n")
        file.flush()
        os.fsync(file.fileno())


def read_records(folder: Path) -> list[Record]:
    """Return the complete records of a folder, oldest first; none if there is no such file.

    Raises:
        UsageError: the file cannot be read, or a complete line is no record; it names file and
            line.
    """
    path = folder / RECORDS
    try:
        written = path.read_bytes()
    except FileNotFoundError:
        return []
    except OSError as error:
        raise UsageError(f"{path}: {error.strerror}") from None
    lines = written[: _complete(written)].splitlines()
    return [_parse(line, f"{path}:{number}") for number, line in enumerate(lines, start=1)]


def _complete(written: bytes) -> int:
    """Return the length of all whole lines together."""
    return written.rfind(b"\n") + 1


def _parse(line: bytes, where: str) -> Record:
    try:
        return Record.model_validate_json(line)
    except ValidationError as error:
        first = error.errors()[0]
        key = ".".join(map(str, first["loc"])) or "the line"
        raise UsageError(f"{where}: not a benchmark record: {key}: {first['msg']}") from None
