import json
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from toolkit.checkpoint.state import part_name
from toolkit.checkpoint.store import CheckpointStore
from toolkit.checkpoint.tensors import Entry, write_tensors
from toolkit.checkpoint.training_state import TrainingState
from toolkit.config import load_run_config
from toolkit.inference.source import find_source
from toolkit.inference.trained import Trained, read_trained
from toolkit.model.gpt2 import GPT2

CPU = torch.device("cpu")
GPT2_WORDS = ["model.vocab_size=50304", "model.n_layer=2"]


def save(run_file: Path, model: GPT2, step: int, overrides: list[str] = GPT2_WORDS) -> Path:
    """Make a model the checkpoint of a run's step; return the run folder."""
    config = load_run_config(run_file, overrides)
    run = Path(config.output_dir) / config.run_name
    run.mkdir(parents=True, exist_ok=True)
    store = CheckpointStore(run / "checkpoints")
    named = dict(model.named_parameters())
    entries = [
        Entry(f"parameter/{name}/0", (value.numel(),), partial(value.view, -1))
        for name, value in named.items()
    ]
    shapes = {name: list(value.shape) for name, value in named.items()}
    state = TrainingState.after(step, shapes=shapes, config=config.model_dump(mode="json"))
    store.begin(step)
    part = write_tensors(store.partial(step) / part_name(0), entries)
    store.commit(step, state.to_json(), {part_name(0): part}, keep_last=9)
    return run


def random_model(run_file: Path, overrides: list[str] = GPT2_WORDS) -> GPT2:
    """A model whose next tokens differ from place to place."""
    torch.manual_seed(3)
    model = GPT2(load_run_config(run_file, overrides).model.sizes()).eval()
    for parameter in model.parameters():
        nn.init.normal_(parameter, std=0.3)
    nn.init.normal_(model.transformer.wpe.weight, std=3.0)
    nn.init.ones_(model.transformer.ln_f.weight)
    nn.init.zeros_(model.transformer.ln_f.bias)
    return model


@pytest.fixture
def run(run_file: Path) -> Path:
    """A run of two blocks with GPT-2's vocabulary, which a person could ask for text."""
    return save(run_file, random_model(run_file), 5)


@pytest.fixture
def trained(run: Path) -> Trained:
    return read_trained(find_source(run), device=CPU)


@pytest.fixture
def unigram(run_file: Path) -> Callable[[dict[int, float]], Trained]:
    """Return a maker of models that give each token the same probability in every place.

    What the given ones leave is the probability of token 0.
    """

    def make(probabilities: dict[int, float]) -> Trained:
        model = GPT2(load_run_config(run_file, GPT2_WORDS).model.sizes())
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.zero_()
            # The last norm gives out its bias alone, so a row's first value is the token's logit.
            model.transformer.ln_f.bias[0] = 1.0
            logits = torch.full((50_304,), -100.0)
            rest = 1 - sum(probabilities.values())
            for token, probability in {0: rest, **probabilities}.items():
                logits[token] = torch.tensor(probability).log()
            model.transformer.wte.weight[:, 0] = logits
        return read_trained(find_source(save(run_file, model, 1)), device=CPU)

    return make


def write_lines(path: Path, *objects: dict[str, Any]) -> Path:
    path.write_text("".join(json.dumps(fields) + "\n" for fields in objects))
    return path
