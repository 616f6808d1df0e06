"""Recording the lesson: one launch for each number of processes, shared by all its recordings."""

import json
import pickle
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from toolkit.engines.strategies import ALONE, COPIES
from toolkit.launch.processes import launch
from toolkit.watch.lesson import Case


def record_cases(cases: Sequence[Case], *, timeout_s: float) -> list[dict[str, Any]]:
    """Do what the cases describe in real processes; return the recordings in the same order.

    Raises:
        ProcessError: a process failed.
        HangError: a launch did not finish within `timeout_s`; its processes have been ended.
    """
    found: dict[int, dict[str, Any]] = {}
    for gpus in sorted({case.gpus for case in cases}):
        places = [place for place, case in enumerate(cases) if case.gpus == gpus]
        recordings = _launch([cases[place] for place in places], gpus, timeout_s=timeout_s)
        found |= dict(zip(places, recordings, strict=True))
    return [found[place] for place in range(len(cases))]


def _launch(cases: list[Case], gpus: int, *, timeout_s: float) -> list[dict[str, Any]]:
    with tempfile.TemporaryDirectory() as folder:
        work = Path(folder) / "work"
        work.write_bytes(pickle.dumps(cases))
        script = ["--module", "toolkit.watch.worker", str(work)]
        launch(ALONE if gpus == 1 else COPIES, gpus, script, timeout_s=timeout_s)
        return json.loads(work.with_name("found.json").read_text())
