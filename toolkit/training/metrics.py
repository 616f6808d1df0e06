"""What a run reports: one JSON object and one console line per step."""

import json
from pathlib import Path
from typing import Any, TextIO

from toolkit.errors import SaveError, UsageError

GIB = 2**30


class MetricsLog:
    """`metrics.jsonl`, appended to as things happen; only rank 0 writes it.

    Args:
        path: the file; what it holds beyond `last_step` is dropped, for it will be done again.
        last_step: updates that the run carries on from; 0 starts the file anew.

    Attributes:
        earlier: the records of the steps before this start.

    Raises:
        UsageError: the file cannot be written.
    """

    def __init__(self, path: Path, *, last_step: int) -> None:
        kept = [line for line in _lines(path) if _step_of(line) <= last_step] if last_step else []
        partial = path.with_suffix(".jsonl.tmp")
        try:
            partial.write_text("".join(line + "\n" for line in kept))
            partial.replace(path)
            self._file: TextIO = path.open("a", buffering=1)
        except OSError as error:
            raise UsageError(f"{path}: cannot be written: {error.strerror}") from None
        self.earlier = [json.loads(line) for line in kept]

    def write(self, record: dict[str, Any]) -> None:
        """Append one object; it is on its way to the file when this returns.

        Raises:
            SaveError: it cannot be written, say for a full disk.
        """
        try:
            self._file.write(json.dumps(record) + "\n")
        except OSError as error:
            raise SaveError(f"{self._file.name}: cannot be written: {error.strerror}") from None

    def close(self) -> None:
        """Close the file."""
        self._file.close()


def _lines(path: Path) -> list[str]:
    return path.read_text().splitlines() if path.exists() else []


def _step_of(line: str) -> float:
    """Step of a line; a line torn by a crash belongs to no step that was kept."""
    try:
        return int(json.loads(line)["step"])
    except (ValueError, KeyError, TypeError):
        return float("inf")


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
