"""Both examples in the same processes, under one strategy after another.

Run under `accelerate launch` with a folder and the names of strategies. What each model did under
each is left there as `verify` compares it: `Trajectory` by the names of strategy and model.
"""

import sys
from collections.abc import Iterator
from contextlib import nullcontext
from datetime import timedelta
from pathlib import Path
from typing import cast

import torch
from torch import nn

sys.path.insert(0, str(Path(__file__).parents[2] / "examples"))

import own_loop
import own_model

from tests.distributed.engines import RANK, become
from toolkit.engines.accelerate_internals import forget_engine
from toolkit.engines.engine import Engine
from toolkit.engines.strategies import Strategy
from toolkit.launch.exit_code import end_process
from toolkit.model.gpt2 import GPT2
from toolkit.model.sizes import ModelSizes
from toolkit.training.step import MicroBatch, StepResult, train_step
from toolkit.verify.reference import Trajectory
from toolkit.verify.worker import FirstGradients

FOUND = "found.pt"


def models() -> Iterator[tuple[str, nn.Module]]:
    """Both models, each from the same seed whenever it is built."""
    torch.manual_seed(1)
    yield "gpt2", GPT2(ModelSizes(2, 2, 32, vocab_size=256, block_size=own_loop.LENGTH))
    torch.manual_seed(1)
    yield "own", own_model.ByteModel()


class Watched:
    """The loop's `train_step`, which keeps what `verify` compares."""

    def __init__(self) -> None:
        self.grad_norms: list[float] = []

    def __call__(self, engine: Engine, micro_batches: list[MicroBatch], *, lr: float) -> StepResult:
        if not self.grad_norms:
            self.engine, self.gradients = engine, FirstGradients(engine)
        result = train_step(engine, micro_batches, lr=lr, callbacks=[self.gradients])
        self.grad_norms.append(float(result.grad_norm))
        return result

    def trajectory(self, losses: list[float]) -> Trajectory:
        """Return what was done; a collective."""
        parameters = {
            name: self.engine.state.full_parameter(parameter).detach().clone()
            for name, parameter in self.engine.module.named_parameters()
        }
        return Trajectory(losses, self.grad_norms, self.gradients.by_name, parameters)


def main(folder: Path, strategies: list[str]) -> None:
    found = {}
    for strategy in strategies:
        launched = become(cast(Strategy, strategy), timeout=timedelta(seconds=60))
        device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
        own_loop.join_launch = lambda joined=(launched, device): nullcontext(joined)
        for name, model in models():
            forget_engine()
            own_loop.train_step = watched = Watched()
            blocks = [own_model.Gate] if name == "own" else []
            losses = own_loop.train(model, folder / strategy / name, blocks)
            found[strategy, name] = watched.trajectory(losses)
    if RANK == 0:
        torch.save(found, folder / FOUND)


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:])
    end_process(0)
