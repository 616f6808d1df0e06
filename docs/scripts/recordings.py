"""What the pages of docs/watch.md show, recorded anew: `python -m docs.scripts.recordings`.

It starts real processes, so numbers and times are those of the machine that it runs on. The site
builds each page from its recording, with the page's present markup and script.
"""

import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from toolkit.engines.strategies import ACCUMULATIONS, ALONE, STRATEGIES
from toolkit.watch.lesson import Case, plan_cases

FOLDER = Path(__file__).parents[1] / "recordings"
DEMO = FOLDER.parents[1] / "configs" / "train" / "demo.yaml"
STEPS = "[5,6]"


def lesson_cases() -> list[Case]:
    """Return the recordings of `toolkit watch` without options."""
    base = Case(strategy="ddp", accumulation="replicated", gpus=4, grad_accum_steps=2)
    strategies = tuple(strategy for strategy in STRATEGIES if strategy != ALONE)
    cases, _ = plan_cases(base, strategies=strategies, accumulations=ACCUMULATIONS)
    return cases


def main(settings: Sequence[str]) -> None:
    """Record the lesson, and two steps of the demo run on two processes under FSDP2.

    Args:
        settings: of the demo run, beyond its file, such as where its data is.
    """
    from toolkit.watch.record import record_cases
    from toolkit.watch.run import run_data

    FOLDER.mkdir(exist_ok=True)
    _write("lesson", {"recordings": record_cases(lesson_cases(), timeout_s=300)})
    with TemporaryDirectory() as folder:
        words = ["training.steps=7", f"training.record={STEPS}", f"output_dir={folder}", *settings]
        command = [sys.executable, "-m", "toolkit", "train", "--strategy", "fsdp2"]
        command += ["--num-processes", "2", "--config", str(DEMO), *words]
        subprocess.run(command, check=True)
        _write("run", {"run": run_data(Path(folder) / "demo")})


def _write(name: str, value: dict[str, Any]) -> None:
    (FOLDER / f"{name}.json").write_text(json.dumps(value, separators=(",", ":")) + "\n")


if __name__ == "__main__":
    main(sys.argv[1:])
