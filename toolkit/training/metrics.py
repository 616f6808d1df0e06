"""What a run reports: one JSON object and one console line per step."""

import json
from pathlib import Path
from typing import Any, TextIO

from toolkit.errors import SaveError, UsageError

GIB = 2**30


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
            SaveError: it cannot be written, say for a full disk.
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


def train_line(record: dict[str, Any], *, steps: int) -> str:
    """Return the console line of a training record."""
    peak = record["peak_memory_bytes"]
    memory = f" | {peak / GIB:.3f} GiB" if peak is not None else ""
    skipped = f" | skipped {record['skipped']}" if record.get("skipped") else ""
    return (
        f"step {record['step']:>5}/{steps} | loss {record['loss']:.4f} | "
        f"grad_norm {record['grad_norm']:.3f} | lr {record['lr']:.2e} | "
        f"{record['step_s'] * 1e3:.0f} ms | {record['tokens_per_s']:,.0f} tokens/s"
        f"{memory}{skipped}"
    )


def eval_line(record: dict[str, Any], *, steps: int) -> str:
    """Return the console line of an evaluation record."""
    tokens = f"{record['tokens']:,} tokens"
    return f"eval {record['step']:>5}/{steps} | loss {record['loss']:.4f} | {tokens}"
