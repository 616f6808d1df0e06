from pathlib import Path
from typing import Any

import pytest
import torch

from toolkit.checkpoint.store import CheckpointStore
from toolkit.training.exchange import import_weights

PADDED = ["model.n_layer=2", "model.vocab_size=50304"]


@pytest.fixture
def store(tmp_path: Path) -> CheckpointStore:
    return CheckpointStore(tmp_path / "checkpoints")


@pytest.fixture(scope="package")
def theirs(tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, Path]:
    """A model of transformers with GPT-2's vocabulary, and the folder that it is saved in."""
    from transformers import GPT2Config, GPT2LMHeadModel

    torch.manual_seed(1)
    config = GPT2Config(n_layer=2, n_head=2, n_embd=16, vocab_size=50_257, n_positions=32)
    model = GPT2LMHeadModel(config).eval()
    for name, parameter in model.named_parameters():
        if name.endswith("bias"):
            torch.nn.init.normal_(parameter, std=0.1)
    folder = tmp_path_factory.mktemp("theirs")
    model.save_pretrained(folder)
    return model, folder


@pytest.fixture
def imported(run_file: Path, theirs: tuple[Any, Path]) -> Path:
    """A run that starts from their weights, with GPT-2's vocabulary padded."""
    checkpoint = import_weights(theirs[1], run_file, PADDED, trust=False)
    return checkpoint.parents[1]
