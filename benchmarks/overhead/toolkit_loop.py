"""The toolkit as a person runs it: `launch/train.py` under `accelerate launch`, with a run's file.

All that is added is the waiting for turns, as a callback.
"""

import os
import sys
from collections.abc import Sequence
from typing import Any

import yaml

from benchmarks.overhead.turns import LoopOrder, Turns, main
from benchmarks.overhead.workload import GRAD_CLIP, LR, SEED
from toolkit.training import worker
from toolkit.training.callback import Callback, Progress

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


class TakingTurns(Callback):
    """Waits for its turn before each step."""

    def __init__(self, turns: Turns) -> None:
        self.turns = turns

    def at_start(self, progress: Progress) -> None:
        """Wait before the first step."""
        self.turns.before_step(progress.step)

    def after_step(self, progress: Progress, numbers: Sequence[float]) -> None:
        """Note the loss, and wait before the next step."""
        self.turns.loss(progress.loss)
        self.turns.before_step(progress.step)


def train(order: LoopOrder, turns: Turns) -> None:
    """Run the worker until there are no more turns."""
    file = order.folder / f"run_{os.environ['RANK']}.yaml"
    file.write_text(yaml.safe_dump(run_file(order)))
    sys.exit(worker.main(["--config", str(file)], callbacks=[TakingTurns(turns)]))


if __name__ == "__main__":
    main(train)
