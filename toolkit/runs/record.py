"""A run as its folder shows it, while it trains or afterwards."""

import fcntl
import os
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate
from pathlib import Path
from statistics import median
from typing import Any, Literal

from toolkit.config import dotted_values, load_run_config
from toolkit.config.strict_yaml import load_yaml_mapping
from toolkit.errors import UsageError
from toolkit.training.metrics import read_metrics
from toolkit.training.run_folder import read_last_start, read_summary, run_folder

Axis = Literal["step", "tokens", "hours"]
_CONFIGURATIONS = (".yaml", ".yml")
_CONFIG = "config.yaml"


@dataclass(frozen=True)
class RunRecord:
    """The files of one run folder.

    Attributes:
        config: `section.key` to value, resolved; empty before the run has started.
        launch: `launch.yaml`; empty before the run has started.
        records: of `metrics.jsonl`.
        summary: None while it trains, or after it was killed.
        environment: `environment.json`; empty before the run has started.
    """

    folder: Path
    config: dict[str, Any]
    launch: dict[str, Any]
    records: list[dict[str, Any]]
    summary: dict[str, Any] | None
    environment: dict[str, Any]

    @property
    def name(self) -> str:
        """Name of the folder."""
        return self.folder.resolve().name

    @cached_property
    def train(self) -> list[dict[str, Any]]:
        """Records of the optimizer steps."""
        return [record for record in self.records if record["kind"] == "train"]

    @cached_property
    def evaluations(self) -> list[dict[str, Any]]:
        """Records of the evaluations."""
        return [record for record in self.records if record["kind"] == "eval"]

    @property
    def steps(self) -> int | None:
        """Steps of the whole run."""
        return self.config.get("training.steps")

    @property
    def tokens_per_s(self) -> float | None:
        """Median over the steps but the first, which also warms up."""
        rates = [record["tokens_per_s"] for record in self.train[1:]]
        return median(rates) if rates else None

    @property
    def peak_memory_bytes(self) -> int | None:
        """The most that any step held on rank 0."""
        peaks = [record.get("peak_memory_bytes") for record in self.train]
        return max((peak for peak in peaks if peak is not None), default=None)

    @property
    def state(self) -> str:
        """`training`, or how the last start ended."""
        if _is_locked(self.folder):
            return "training"
        ended = read_last_start(self.folder) or self.summary
        if ended is None:
            return "killed" if self.train else "not started"
        return "done" if ended["exit"] == 0 else f"exit {ended['exit']}"

    def places(self, axis: Axis) -> list[float]:
        """Return where each training step is on an axis; hours are those of its steps alone."""
        if axis == "hours":
            return [seconds / 3600 for seconds in accumulate(r["step_s"] for r in self.train)]
        return [record[axis] for record in self.train]

    def places_of(self, steps: Sequence[int], axis: Axis) -> list[float]:
        """Return where each of some steps is on an axis, 0 before the first trained one."""
        trained = [record["step"] for record in self.train]
        places = [0.0, *self.places(axis)]
        return [places[bisect_right(trained, step)] for step in steps]


def find_run(path: Path, overrides: Sequence[str] = ()) -> Path:
    """Return a run's folder, given that or the run's configuration with its overrides.

    Raises:
        UsageError: it is neither, or a folder has overrides.
    """
    hint = "give <output_dir>/<run_name> or the run's YAML"
    if path.suffix in _CONFIGURATIONS:
        path, hint = run_folder(load_run_config(path, overrides)), "train it first"
    elif overrides:
        raise UsageError(f"{overrides[0]} changes nothing of {path}; give the run's YAML with it")
    if not _is_run(path):
        raise UsageError(f"{path} is no run; {hint}")
    return path


def read_run(path: Path, overrides: Sequence[str] = ()) -> RunRecord:
    """Read a run's folder, given as to `find_run`; raises as it does."""
    folder = find_run(path, overrides)
    config, launch = (_read(folder / name) for name in (_CONFIG, "launch.yaml"))
    records = read_metrics(folder / "metrics.jsonl")
    return RunRecord(
        folder,
        dotted_values(config),
        launch,
        records,
        read_summary(folder),
        _read(folder / "environment.json"),
    )


def find_runs(folder: Path) -> Iterator[RunRecord]:
    """Yield the runs below a folder, in the order of their paths; a run holds no other.

    Raises:
        UsageError: there is no such folder.
    """
    if not folder.is_dir():
        raise UsageError(f"{folder}: no such folder")
    for parent, folders, names in os.walk(folder):
        folders.sort()
        if _CONFIG in names and _is_run(Path(parent)):
            folders.clear()
            yield read_run(Path(parent))


def _is_run(folder: Path) -> bool:
    return any((folder / name).exists() for name in ("metrics.jsonl", "checkpoints", "launch.yaml"))


def _read(path: Path) -> dict[str, Any]:
    """JSON is YAML."""
    return load_yaml_mapping(path) if path.is_file() else {}


def _is_locked(folder: Path) -> bool:
    """Whether a process trains there; it holds the lock of `sole_user`."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(descriptor)
    return False
