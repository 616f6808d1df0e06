"""The stages in their order, and the record that grows with every row."""

import json
import subprocess
import time
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

from benchmarks.gpu_check import equivalence, one_process, runs
from benchmarks.gpu_check.page import write_page
from benchmarks.gpu_check.scale import Scale
from benchmarks.machine import describe_environment
from toolkit.errors import ToolkitError
from toolkit.launch.temporary import temporary_folder

Stage = Callable[[Scale, Path], Iterator[dict[str, Any]]]
STAGES: dict[str, Stage] = {
    "one process": equivalence.one_process,
    "memory": one_process.memory,
    "every engine, one rank": equivalence.every_engine,
    "speed": one_process.speed,
    "save and resume": runs.resume,
    "two ranks on one device": equivalence.two_ranks,
    "hang": runs.hang,
}


class Check:
    """Runs stages and keeps what they find.

    Args:
        scale: what is run.
        folder: for `gpu_check.json` and `gpu_check.md`; what was there is replaced.
        budget_s: seconds after which no row is begun.
    """

    def __init__(self, scale: Scale, folder: Path, *, budget_s: float) -> None:
        self.scale = scale
        self.folder = folder
        self.budget_s = budget_s
        self.record: dict[str, Any] = {
            "environment": describe_environment(
                one_process.device_name(scale), threads=1
            ).model_dump(),
            "device": scale.device,
            "stages": {},
            "calibration": None,
        }

    def run(self, names: Sequence[str]) -> int:
        """Run stages by name; return 1 if anything is not as claimed, else 0."""
        started = time.monotonic()
        with temporary_folder("gpu-check-") as work:
            for name in names:
                self._stage(name, work, started)
        return int(any("problem" in row for rows in self._rows() for row in rows))

    def _rows(self) -> list[list[dict[str, Any]]]:
        return [stage["rows"] for stage in self.record["stages"].values()]

    def _stage(self, name: str, work: Path, started: float) -> None:
        own = time.monotonic()
        stage: dict[str, Any] = {"complete": False, "seconds": 0.0, "rows": []}
        self.record["stages"][name] = stage
        with closing(_caught(STAGES[name](self.scale, work))) as rows:
            while time.monotonic() - started < self.budget_s:
                row = next(rows, None)
                stage["seconds"] = round(time.monotonic() - own, 1)
                if row is None:
                    stage["complete"] = True
                    break
                stage["rows"].append(row)
                self._write()
                print(f"{name}: {json.dumps(row)}", flush=True)
        self._write()

    def _write(self) -> None:
        """Write the record and its page, each in one move."""
        self.folder.mkdir(parents=True, exist_ok=True)
        self.record["calibration"] = one_process.calibration(self.record["environment"]["device"])
        texts = {
            "gpu_check.json": json.dumps(self.record, indent=1) + "\n",
            "gpu_check.md": write_page(self.record),
        }
        for name, text in texts.items():
            partial = self.folder / f"{name}.tmp"
            partial.write_text(text)
            partial.replace(self.folder / name)


def _caught(rows: Iterator[dict[str, Any]]) -> Generator[dict[str, Any]]:
    """Make a row of a stage's failure: those after it are still worth their time."""
    try:
        yield from rows
    except (ToolkitError, subprocess.SubprocessError, OSError) as error:
        printed = getattr(error, "stderr", None) or str(error)
        yield {"problem": printed.strip().splitlines()[-1]}
