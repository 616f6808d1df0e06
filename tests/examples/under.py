"""Both examples in the same processes, under one strategy after another: their losses, as JSON.

Run under `accelerate launch` with a folder and the names of strategies.
"""

import json
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
from toolkit.engines.strategies import Strategy
from toolkit.model.gpt2 import GPT2
from toolkit.model.sizes import ModelSizes
from toolkit.training.worker import end_process


def models() -> Iterator[tuple[str, nn.Module]]:
    """Both models, each from the same seed whenever it is built."""
    torch.manual_seed(1)
    yield "gpt2", GPT2(ModelSizes(2, 2, 32, vocab_size=256, block_size=own_loop.LENGTH))
    torch.manual_seed(1)
    yield "own", own_model.ByteModel()


def main(folder: Path, strategies: list[str]) -> None:
    for strategy in strategies:
        launched = become(cast(Strategy, strategy), timeout=timedelta(seconds=60))
        device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
        own_loop.join_launch = lambda joined=(launched, device): nullcontext(joined)
        found = {}
        for name, model in models():
            forget_engine()
            blocks = [own_model.Gate] if name == "own" else []
            found[name] = own_loop.train(model, folder / strategy / name, blocks)
        if RANK == 0:
            print("FOUND " + json.dumps({"strategy": strategy, **found}), flush=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:])
    end_process(0)
