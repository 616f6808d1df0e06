"""A training process whose collectives of step 3 are counted where PyTorch dispatches them."""

import json
import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from toolkit.engines.collectives import CollectiveCounter
from toolkit.launch.exit_code import end_process
from toolkit.training.callback import Callback, Progress
from toolkit.training.worker import main

STEP = 3


class Counting(Callback):
    """Writes kind, elements and bytes of each collective of one update, in their order."""

    def __init__(self, folder: Path) -> None:
        self.file = folder / f"counted_{os.environ.get('RANK', '0')}.json"

    @contextmanager
    def during_update(self, progress: Progress) -> Iterator[None]:
        if progress.step + 1 != STEP:
            yield
            return
        with CollectiveCounter() as counter:
            yield
        found = [(call.kind, call.elements, call.itemsize) for call in counter.seen]
        self.file.write_text(json.dumps(found))


def run(folder: str, words: Sequence[str]) -> None:
    end_process(main(words, [Counting(Path(folder))]))


if __name__ == "__main__":
    run(sys.argv[1], sys.argv[2:])
