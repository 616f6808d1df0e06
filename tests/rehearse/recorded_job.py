"""The main job, which also records the sequences that each rank trains on in each step."""

import json
import os
import sys
import time
from pathlib import Path
from unittest.mock import patch

from toolkit.launch.exit_code import end_process
from toolkit.training.loop import Loop
from toolkit.training.step import MicroBatch, StepResult
from toolkit.training.worker import main

FOLDER = "RECORDED_BATCHES"


class Recorder:
    """Appends a line per micro-batch, after the update, to a file of this start and rank."""

    def __init__(self) -> None:
        self.update = Loop._update
        self.file: Path | None = None

    def updated(self, loop: Loop, micro_batches: list[MicroBatch]) -> StepResult:
        engine = loop.run.engine
        if self.file is None:
            start = engine.ranks.gather(time.time_ns())[0]
            self.file = Path(os.environ[FOLDER]) / f"{start}_{engine.rank}.jsonl"
        result = self.update(loop, micro_batches)
        step, world_size = loop.progress.step + 1, engine.world_size
        with self.file.open("a") as file:
            for wave, (tokens, _) in enumerate(micro_batches):
                file.write(json.dumps([step, wave, world_size, tokens.tolist()]) + "\n")
        return result


if __name__ == "__main__":
    recorder = Recorder()
    with patch.object(Loop, "_update", lambda *arguments: recorder.updated(*arguments)):
        end_process(main(sys.argv[1:]))
