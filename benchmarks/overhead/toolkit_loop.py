"""The toolkit as a person runs it: `launch/train.py` under `accelerate launch`, with a run's file.

All that is added is the waiting for turns, where the loop marks its progress.
"""

import os
import sys
from collections.abc import Callable
from typing import Any
from unittest.mock import patch

import yaml

from benchmarks.overhead.turns import LoopOrder, Turns, main
from benchmarks.overhead.workload import GRAD_CLIP, LR, SEED
from toolkit.training import worker
from toolkit.training.loop import Loop

LONGEST_WAIT_S = 3600.0


def run_file(order: LoopOrder) -> dict[str, Any]:
    """Return the run's configuration; what is not given is the toolkit's default."""
    workload = order.workload
    return {
        "model": {
            "n_layer": workload.n_layer,
            "n_head": workload.n_head,
            "n_embd": workload.n_embd,
            "vocab_size": workload.vocab_size,
            "block_size": workload.seq_len,
            "loss": order.case.loss,
        },
        "data": {"train": str(order.data), "shuffle": False},
        "batch": {
            "tokens_per_step": workload.tokens_per_step,
            "micro_batch_size": workload.micro_batch_size,
        },
        "accumulation": order.case.accumulation,
        "seed": SEED,
        "output_dir": str(order.folder),
        "run_name": "run",
        "optimizer": {"lr": LR, "min_lr": LR, "grad_clip": GRAD_CLIP},
        "training": {
            "steps": workload.steps_per_turn * workload.turns + 1,
            "checkpoint_every": "never",
            # Waiting for a turn is no hang.
            "timeout_s": LONGEST_WAIT_S,
        },
    }


def train(order: LoopOrder, turns: Turns) -> None:
    """Run the worker until there are no more turns."""

    class TakingTurns(Loop):
        """Waits at the top of the loop."""

        def __init__(self, *args: Any, mark: Callable[[int], None], **options: Any) -> None:
            def wait_and_mark(step: int) -> None:
                if self.report.loss is not None:
                    turns.loss(self.report.loss)
                turns.before_step(step)
                mark(step)

            super().__init__(*args, mark=wait_and_mark, **options)

    file = order.folder / f"run_{os.environ['RANK']}.yaml"
    file.write_text(yaml.safe_dump(run_file(order)))
    with patch("toolkit.training.loop.Loop", TakingTurns):
        sys.exit(worker.main(["--config", str(file)]))


if __name__ == "__main__":
    main(train)
