"""A trained model with its tokenizer, read from any source of weights onto one device."""

import json
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from toolkit.checkpoint.import_weights import read_weights
from toolkit.checkpoint.state import PortableState
from toolkit.checkpoint.training_state import read_training_state
from toolkit.data.index import read_index
from toolkit.data.tokenizers import Tokenizer, find_tokenizer, open_tokenizer
from toolkit.data.vocabulary import VOCABULARY_NAME
from toolkit.errors import UntrustedError, UsageError
from toolkit.inference.source import Source
from toolkit.model.gpt2 import GPT2
from toolkit.model.sizes import ModelSizes

# Names in transformers' `config.json` for what `ModelSizes` holds.
_THEIR_NAMES = {
    "n_layer": "n_layer",
    "n_head": "n_head",
    "n_embd": "n_embd",
    "vocab_size": "vocab_size",
    "block_size": "n_positions",
}


@dataclass(frozen=True)
class Trained:
    """A model in evaluation mode, in fp32.

    Attributes:
        tokenizer: opened; `tokenizer_source` is what `open_tokenizer` was given.
        config: of the run, resolved; empty for weights in transformers' layout.
    """

    source: Source
    model: GPT2
    sizes: ModelSizes
    tokenizer: Tokenizer
    tokenizer_source: str
    config: dict[str, Any]

    @property
    def device(self) -> torch.device:
        """Where the model is."""
        return self.model.lm_head.weight.device

    @property
    def vocabulary(self) -> int:
        """Ids that stand for text; rows beyond them pad the embedding."""
        return min(self.sizes.vocab_size, self.tokenizer.size)

    def encode(self, text: str) -> list[int]:
        """Return a text's ids.

        Raises:
            UsageError: the model's vocabulary does not have one of them.
        """
        tokens = self.tokenizer.encode(text)
        if tokens and max(tokens) >= self.sizes.vocab_size:
            raise UsageError(
                f"the text has the token {max(tokens)}, but the vocabulary of {self.source.name} "
                f"ends at {self.sizes.vocab_size - 1}"
            )
        return tokens


def default_device() -> torch.device:
    """Return this process's GPU if there is one, else the CPU."""
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")


def read_trained(source: Source, *, device: torch.device, tokenizer: str | None = None) -> Trained:
    """Read a model; one whole copy of its weights is in memory.

    Args:
        source: which weights.
        device: where to put them.
        tokenizer: of `open_tokenizer`; by default what the run's training data was made with, or
            the export's own.

    Raises:
        UsageError: the tokenizer is not the one that the model was trained with, or the folder
            describes another kind of model.
        UntrustedError: the weights are damaged.
    """
    if source.run is None:
        sizes, weights, config = _exported(source.folder)
        tokenizer = tokenizer or find_tokenizer(source.folder) or VOCABULARY_NAME
        chosen = open_tokenizer(tokenizer)
    else:
        state = read_training_state(source.folder)
        config = state.config
        if "model" not in config:
            raise UsageError(f"{source.folder} was written by a loop that is not the toolkit's")
        sizes = _sizes(config["model"])
        weights = _read_checkpoint(source.folder, state.shapes)
        tokenizer = tokenizer or _tokenizer_of_data(config["data"]["train"])
        chosen = open_tokenizer(tokenizer)
        _check_tokenizer(source, chosen, state.data.get("vocabulary_sha256", []))
    # The sum of the loss is never taken over all logits at once.
    with torch.device("meta"):
        model = GPT2(sizes, loss="chunked")
    model.load_state_dict(weights, strict=False, assign=True)
    model.tie_weights()
    model = model.eval().requires_grad_(False).to(device)
    return Trained(source, model, sizes, chosen, tokenizer, config)


def _read_checkpoint(folder: Path, shapes: dict[str, list[int]]) -> dict[str, torch.Tensor]:
    with ExitStack() as files:
        tensors = PortableState(folder, files)
        sizes = {name: torch.Size(shape).numel() for name, shape in shapes.items()}
        tensors.check_complete("parameter", sizes)
        return {name: tensors.whole("parameter", name, shape) for name, shape in shapes.items()}


def _exported(folder: Path) -> tuple[ModelSizes, dict[str, torch.Tensor], dict[str, Any]]:
    file = folder / "config.json"
    try:
        described = json.loads(file.read_bytes())
        sizes = ModelSizes(**{own: int(described[name]) for own, name in _THEIR_NAMES.items()})
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise UntrustedError(f"{file}: does not describe a GPT-2 ({error!r})") from None
    return sizes, read_weights(folder, sizes, trust=False), {}


def _sizes(model: dict[str, Any]) -> ModelSizes:
    return ModelSizes(**{name: model[name] for name in _THEIR_NAMES})


def _tokenizer_of_data(train: Any) -> str:
    names = [train] if isinstance(train, str) else train
    for folder in map(Path, names):
        if file := find_tokenizer(folder):
            return file
        if folder.is_dir() and (index := read_index(folder)):
            return index.vocabulary.name
    return VOCABULARY_NAME


def _check_tokenizer(source: Source, tokenizer: Tokenizer, recorded: list[str]) -> None:
    if recorded and tokenizer.sha256 not in recorded:
        raise UsageError(
            f"{source.name} was trained with another tokenizer than {tokenizer.name}; give the "
            "one that its data was prepared with as --tokenizer"
        )
