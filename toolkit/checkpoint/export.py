"""Weights out: a checkpoint as a folder that transformers loads, generates with and shows."""

import json
from collections.abc import Mapping
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from toolkit.checkpoint.layout import COMPUTATION, EMBEDDING, TRANSPOSED
from toolkit.checkpoint.model_card import SIGNATURE, model_card
from toolkit.checkpoint.state import PortableState
from toolkit.checkpoint.tensors import Entry, write_tensors
from toolkit.checkpoint.training_state import TrainingState, read_training_state
from toolkit.data.durable import publish, temporary_name, write_aside
from toolkit.data.tokenizer import gpt2_tokenizer_files
from toolkit.data.vocabulary import END_OF_TEXT, RANKS_SHA256
from toolkit.errors import SaveError
from toolkit.model.sizes import GPT2_VOCAB_SIZE, is_gpt2_vocabulary

_CARD = "README.md"


@dataclass(frozen=True)
class Exported:
    """The file of weights, the names of the files beside it, and what else a person should know."""

    weights: Path
    beside: list[str]
    remarks: list[str]


def export(checkpoint: Path, folder: Path, *, evaluation: Mapping[str, Any] | None) -> Exported:
    """Write a verified checkpoint's weights as `model.safetensors` and what transformers needs.

    `GPT2LMHeadModel.from_pretrained(folder)` reads them, `pipeline("text-generation", folder)`
    the tokenizer as well, which is written where the model's vocabulary is GPT-2's. One tensor at
    a time is in memory. An earlier export stays until all of the new one is on the disk; a
    `README.md` that no export wrote stays as it is.

    Args:
        checkpoint: a step folder.
        folder: made where it is not there.
        evaluation: the run's evaluation record after that step, for the model card.

    Raises:
        SaveError: it cannot be written.
    """
    state = read_training_state(checkpoint)
    other = _other_vocabulary(state)
    weights = folder / "model.safetensors"
    texts = _texts(state, evaluation, other)
    remarks = _remarks(state, other)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if not _may_replace(folder / _CARD):
            del texts[_CARD]
            remarks.append(f"{folder / _CARD} stays, for no export wrote it")
        _write(checkpoint, state, weights, texts, rows=_rows(state, other))
        if other:
            _remove_tokenizer(folder)
    except OSError as error:
        for name in (weights.name, *texts):
            with suppress(OSError):
                temporary_name(folder / name).unlink()
        raise SaveError(f"{folder}: cannot be exported to: {error.strerror}") from None
    return Exported(weights, list(texts), remarks)


def _other_vocabulary(state: TrainingState) -> str | None:
    """Why the model's vocabulary is not GPT-2's, or None where it is as far as is recorded."""
    size = state.config["model"]["vocab_size"]
    recorded = set(state.data.get("vocabulary_sha256", ()))
    if others := recorded - {RANKS_SHA256}:
        return f"the training data's index.json names another vocabulary, SHA-256 {min(others)}"
    if size < GPT2_VOCAB_SIZE or not (recorded or is_gpt2_vocabulary(size)):
        return f"the model's vocabulary has {size:,} tokens, GPT-2's {GPT2_VOCAB_SIZE:,}"
    return None


def _rows(state: TrainingState, other: str | None) -> int:
    """Rows of the embedding without those that pad GPT-2's vocabulary."""
    size: int = state.config["model"]["vocab_size"]
    is_padded = other is None or is_gpt2_vocabulary(size)
    return GPT2_VOCAB_SIZE if is_padded else size


def _remarks(state: TrainingState, other: str | None) -> list[str]:
    if other:
        return [f"no tokenizer is written: {other}"]
    if not state.data.get("vocabulary_sha256"):
        return ["the tokenizer is GPT-2's, judged by the model's size: no index.json records it"]
    return []


def _texts(
    state: TrainingState, evaluation: Mapping[str, Any] | None, other: str | None
) -> dict[str, str]:
    block_size, rows = state.config["model"]["block_size"], _rows(state, other)
    tokenizer = {} if other else gpt2_tokenizer_files(block_size)
    ends = () if other else ("bos_token_id", "eos_token_id", "pad_token_id")
    # There are no positions to generate beyond.
    generation = {**dict.fromkeys(ends, END_OF_TEXT), "max_length": block_size}
    return {
        "config.json": _as_json(_config(state, rows=rows, is_gpt2=other is None)),
        "generation_config.json": _as_json(generation),
        **tokenizer,
        _CARD: model_card(state, evaluation, rows=rows, without_tokenizer=other),
    }


def _config(state: TrainingState, *, rows: int, is_gpt2: bool) -> dict[str, Any]:
    model = state.config["model"]
    # Without it transformers makes an empty tokenizer up, and generates nothing in silence.
    tokenizer = {} if is_gpt2 else {"tokenizer_class": "PreTrainedTokenizerFast"}
    return {
        "model_type": "gpt2",
        "architectures": ["GPT2LMHeadModel"],
        "n_layer": model["n_layer"],
        "n_head": model["n_head"],
        "n_embd": model["n_embd"],
        "n_positions": model["block_size"],
        "vocab_size": rows,
        "resid_pdrop": model["dropout"],
        "embd_pdrop": model["dropout"],
        "attn_pdrop": model["dropout"],
        "tie_word_embeddings": True,
        "bos_token_id": END_OF_TEXT if is_gpt2 else None,
        "eos_token_id": END_OF_TEXT if is_gpt2 else None,
        **tokenizer,
        **COMPUTATION,
    }


def _as_json(value: dict[str, Any]) -> str:
    return json.dumps(value, indent=2) + "\n"


def _may_replace(card: Path) -> bool:
    return not card.exists() or SIGNATURE in card.read_text(errors="replace")


def _remove_tokenizer(folder: Path) -> None:
    """Take GPT-2's tokenizer away where an earlier export left it; any other one stays."""
    files = gpt2_tokenizer_files(1)
    vocabulary = folder / "vocab.json"
    if vocabulary.exists() and vocabulary.read_text(errors="replace") == files[vocabulary.name]:
        for name in files:
            (folder / name).unlink(missing_ok=True)


def _write(
    checkpoint: Path, state: TrainingState, weights: Path, texts: dict[str, str], *, rows: int
) -> None:
    with ExitStack() as files:
        tensors = PortableState(checkpoint, files)
        entries = [_entry(tensors, name, shape, rows=rows) for name, shape in state.shapes.items()]
        write_tensors(temporary_name(weights), entries)
    for name, text in texts.items():
        write_aside(weights.with_name(name), text.encode())
    for name in texts:
        publish(weights.with_name(name))
    publish(weights)


def _entry(tensors: PortableState, name: str, shape: list[int], *, rows: int) -> Entry:
    cut = [rows, *shape[1:]] if name == EMBEDDING else shape
    is_transposed = name.endswith(TRANSPOSED)

    def read() -> torch.Tensor:
        whole = tensors.whole("parameter", name, shape)
        return whole.t() if is_transposed else whole[: cut[0]]

    return Entry(name, tuple(reversed(cut) if is_transposed else cut), read)
