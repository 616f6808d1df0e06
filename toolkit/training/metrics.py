"""What a run reports: one JSON object and one console line per step."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TextIO

from toolkit.errors import SaveError, UsageError
from toolkit.memory.hardware import with_unit


class MetricsLog:
    """`metrics.jsonl`, appended to as things happen; only rank 0 writes it.

    Args:
        path: the file; what it holds beyond `last_step` is dropped at the first record, which does
            it again: a start that fails before leaves the file as it was.
        last_step: completed steps that the run resumes from; 0 starts the file anew.

    Attributes:
        earlier: the records of the steps before this start.
        drops: whether there were any beyond `last_step`.

    Raises:
        UsageError: the file cannot be written.
    """

    def __init__(self, path: Path, *, last_step: int) -> None:
        found = read_metrics(path)
        self.earlier = [record for record in found if record["step"] <= last_step]
        self.drops = len(self.earlier) < len(found)
        self._path = path
        self._has_begun = False
        try:
            self._file: TextIO = path.open("a", buffering=1)
        except OSError as error:
            raise UsageError(f"{path}: cannot be written: {error.strerror}") from None

    def write(self, record: dict[str, Any]) -> None:
        """Append one object; it is on its way to the file when this returns.

        Raises:
            SaveError: it cannot be written, for instance on a full disk.
        """
        try:
            if not self._has_begun:
                self._begin()
            self._file.write(json.dumps(record) + "\n")
        except OSError as error:
            raise SaveError(f"{self._file.name}: cannot be written: {error.strerror}") from None

    def _begin(self) -> None:
        """Take what is dropped, and a torn line, out of the file."""
        partial = self._path.with_suffix(".jsonl.tmp")
        partial.write_text("".join(json.dumps(record) + "\n" for record in self.earlier))
        partial.replace(self._path)
        self._file.close()
        self._file = self._path.open("a", buffering=1)
        self._has_begun = True

    def close(self) -> None:
        """Close the file."""
        self._file.close()


def read_metrics(path: Path) -> list[dict[str, Any]]:
    """Return the records of a `metrics.jsonl`, none if it is not there.

    A line that is no record is skipped: a crash tears the one that is being written.

    Raises:
        UsageError: the file cannot be read.
    """
    try:
        lines = path.read_bytes().splitlines()
    except FileNotFoundError:
        return []
    except OSError as error:
        raise UsageError(f"{path}: cannot be read: {error.strerror}") from None
    return [record for line in lines if (record := _record(line)) is not None]


def _record(line: bytes) -> dict[str, Any] | None:
    try:
        record = json.loads(line)
    except ValueError:
        return None
    is_record = isinstance(record, dict) and isinstance(record.get("step"), int)
    return record if is_record and "kind" in record else None


@dataclass(frozen=True, kw_only=True)
class TrainLine:
    """The console line of training records.

    Attributes:
        steps: of the whole run.
        last_step: that the run ends after.
        every: steps between lines; the last step has one in any case.
        steps_per_epoch: so many use every sequence once.
        utilisation: model FLOPs utilisation for one token a second; None where it is not known.
    """

    steps: int
    last_step: int
    every: int = 1
    steps_per_epoch: float | None = None
    utilisation: float | None = None

    def is_due(self, step: int) -> bool:
        """Whether a step has a line."""
        return step % self.every == 0 or step == self.last_step

    def write(self, record: dict[str, Any], *, tokens_per_s: float | None = None) -> str:
        """Return the line of a record.

        Args:
            record: of a step.
            tokens_per_s: of the steps so far, for the time that is left.
        """
        parts = [
            f"step {record['step']:>5}/{self.steps}",
            f"loss {record['loss']:.4f}",
            f"grad_norm {record['grad_norm']:.3f}",
            f"lr {record['lr']:.2e}",
            f"{record['step_s'] * 1e3:.0f} ms",
            f"{record['tokens_per_s']:,.0f} tokens/s",
        ]
        if record["peak_memory_bytes"] is not None:
            parts.append(with_unit(record["peak_memory_bytes"]))
        if self.utilisation is not None:
            parts.append(f"{record['tokens_per_s'] * self.utilisation:.1%} MFU")
        if self.steps_per_epoch is not None:
            parts.append(f"epoch {record['step'] / self.steps_per_epoch:.2f}")
        if tokens_per_s is not None and (left := self.last_step - record["step"]):
            seconds = left * record["tokens"] / record["step"] / tokens_per_s
            parts.append(f"{_duration(seconds)} left")
        if record.get("skipped"):
            parts.append(f"skipped {record['skipped']}")
        return " | ".join(parts)


def _duration(seconds: float) -> str:
    """Two units are enough to plan by: `40 s`, `12 min`, `3 h 5 min`, `2 d 4 h`."""
    minutes, hours = round(seconds / 60), round(seconds / 3600)
    if seconds < 99.5:
        return f"{seconds:.0f} s"
    if minutes < 100:
        return f"{minutes} min"
    if hours < 48:
        return f"{minutes // 60} h {minutes % 60} min"
    return f"{hours // 24} d {hours % 24} h"


def eval_line(record: dict[str, Any], *, steps: int) -> str:
    """Return the console line of an evaluation record."""
    tokens = f"{record['tokens']:,} tokens"
    return f"eval {record['step']:>5}/{steps} | loss {record['loss']:.4f} | {tokens}"
