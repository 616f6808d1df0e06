"""What `training.record` costs a step that it records: recorded and plain steps take turns.

The demo run on two processes under each strategy that is asked for; a step is all between two
steps' ends, the writing of its record included. Wall time, and processor time of the process.

    python -m benchmarks.record_overhead      # writes results/record_overhead.json
"""

import argparse
import json
import os
import sys
import time
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from benchmarks.machine import describe_environment, find_machine
from benchmarks.measured import Spread
from toolkit.config import load_run_config
from toolkit.home import expand_words
from toolkit.launch.processes import launch
from toolkit.training.callback import Callback, Progress
from toolkit.training.record import Record

RESULTS = Path(__file__).parent / "results"
RUN = Path(__file__).parents[1] / "configs" / "train" / "demo.yaml"
RANKS = 2
WARM_UP = 4
STRATEGIES = "ddp,fsdp2"


def main() -> None:
    """Measure and write."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=RESULTS / "record_overhead.json")
    parser.add_argument("--strategies", default=STRATEGIES)
    parser.add_argument("--steps", type=int, default=120)
    asked = parser.parse_args(expand_words(sys.argv[1:]))
    found = {name: measure(name, asked.steps) for name in asked.strategies.split(",")}
    record = {
        "environment": describe_environment(find_machine().name, threads=1).model_dump(),
        "run": "configs/train/demo.yaml",
        "ranks": RANKS,
        "strategies": found,
    }
    asked.out.write_text(json.dumps(record, indent=1) + "\n")


def measure(strategy: Any, steps: int) -> dict[str, Any]:
    """Return the ratios of each recorded step to the plain one before it, on rank 0."""
    with TemporaryDirectory() as folder:
        script = ["--module", "benchmarks.record_overhead_rank", folder, str(steps)]
        launch(strategy, RANKS, script, timeout_s=450)
        turns = json.loads((Path(folder) / "turns.json").read_text())
    result = {}
    for clock, seconds in turns.items():
        pairs = list(zip(seconds[0::2], seconds[1::2], strict=False))
        ratio = Spread.quartiles(recorded / plain for plain, recorded in pairs)
        result[clock] = {"pairs": pairs, "ratio": ratio._asdict()}
        print(f"{strategy} {clock}: {ratio.median:.4f} ({ratio.low:.4f} to {ratio.high:.4f})")
    return result


class EveryOther(Record):
    """Records every second step."""

    def is_due(self, step: int, done: int) -> bool:
        """Whether a step is recorded."""
        return done >= WARM_UP and done % 2 == 1


class Turns(Callback):
    """Keeps the seconds of each step after the first ones, of two clocks."""

    def __init__(self) -> None:
        self.ends: list[tuple[float, float]] = []

    def after_step(self, progress: Progress, numbers: Sequence[float]) -> None:
        """Note the end of a step."""
        if progress.done >= WARM_UP:
            self.ends.append((time.perf_counter(), time.process_time()))

    def seconds(self) -> dict[str, list[float]]:
        """Return the seconds of each step, plain ones first."""
        clocks = zip(*self.ends, strict=True)
        return {
            name: [later - earlier for earlier, later in pairwise(ends)]
            for name, ends in zip(("wall", "processor"), clocks, strict=True)
        }


def run_rank(folder: Path, steps: int) -> None:
    """Train the demo run for some steps; rank 0 leaves `turns.json`."""
    from toolkit.engines.launched import read_launch
    from toolkit.training.build import build_run
    from toolkit.training.loop import Loop

    settings = [f"output_dir={folder}", "training.checkpoint_every=never"]
    config = load_run_config(RUN, [*settings, f"training.steps={WARM_UP + steps}"])
    run = build_run(config, read_launch(os.environ), folder)
    turns = Turns()
    record = EveryOther(folder, run.engine, (1, WARM_UP + steps), lambda line: None)
    Loop(run, Progress(), [record, turns]).fit()
    if run.engine.rank == 0:
        (folder / "turns.json").write_text(json.dumps(turns.seconds()))


if __name__ == "__main__":
    main()
