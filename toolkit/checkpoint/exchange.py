"""GPT-2 weights in and out of the layout of transformers' GPT2LMHeadModel.

Names are the same. Its linear layers are Conv1D, whose weights are [in, out] where ours are
[out, in]; its head is the token embedding, stored once; its vocabulary has no padding.
"""

import json
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open

from toolkit.checkpoint.position import Position, read_position
from toolkit.checkpoint.state import PortableState
from toolkit.checkpoint.tensors import Entry, write_tensors
from toolkit.errors import UntrustedError, UsageError
from toolkit.model.sizes import GPT2_VOCAB_SIZE, ModelSizes

_TRANSPOSED = ("c_attn.weight", "c_fc.weight", "c_proj.weight")
_EMBEDDING = "transformer.wte.weight"
_HEAD = "lm_head.weight"
# Constants of older files: the causal mask and its fill value.
_MASKS = (".attn.bias", ".attn.masked_bias")


def export(checkpoint: Path, folder: Path) -> Path:
    """Write a verified checkpoint's weights as `model.safetensors`, beside a `config.json`.

    `GPT2LMHeadModel.from_pretrained(folder)` reads them. One tensor at a time is in memory.

    Returns:
        The file of weights.
    """
    position = read_position(checkpoint)
    folder.mkdir(parents=True, exist_ok=True)
    with ExitStack() as files:
        state = PortableState(checkpoint, files)
        entries = [_entry(state, name, shape) for name, shape in position.shapes.items()]
        write_tensors(folder / "model.safetensors", entries)
    (folder / "config.json").write_text(json.dumps(_config(position), indent=2) + "\n")
    return folder / "model.safetensors"


def _entry(state: PortableState, name: str, shape: list[int]) -> Entry:
    cut = [min(shape[0], GPT2_VOCAB_SIZE), *shape[1:]] if name == _EMBEDDING else shape
    is_transposed = name.endswith(_TRANSPOSED)

    def read() -> torch.Tensor:
        whole = state.whole("parameter", name, shape)
        return whole.t() if is_transposed else whole[: cut[0]]

    return Entry(name, tuple(reversed(cut) if is_transposed else cut), read)


def _config(position: Position) -> dict[str, Any]:
    model = position.config["model"]
    return {
        "model_type": "gpt2",
        "architectures": ["GPT2LMHeadModel"],
        "n_layer": model["n_layer"],
        "n_head": model["n_head"],
        "n_embd": model["n_embd"],
        "n_positions": model["block_size"],
        "vocab_size": min(model["vocab_size"], GPT2_VOCAB_SIZE),
        "activation_function": "gelu_new",
        "layer_norm_epsilon": 1e-5,
        "resid_pdrop": model["dropout"],
        "embd_pdrop": model["dropout"],
        "attn_pdrop": model["dropout"],
        "tie_word_embeddings": True,
        "bos_token_id": GPT2_VOCAB_SIZE - 1,
        "eos_token_id": GPT2_VOCAB_SIZE - 1,
    }


def read_weights(path: Path, sizes: ModelSizes, *, trust: bool) -> dict[str, torch.Tensor]:
    """Return weights in this project's layout and names, fp32, read from the other one.

    Rows that pad the vocabulary become the mean of the others, so that they are as unlikely as an
    average token.

    Args:
        path: a safetensors file, or a folder with `model.safetensors`; a pickle where `trust`.
        sizes: the model they are for.
        trust: let PyTorch's restricted unpickler read it; even then only tensors are accepted.

    Raises:
        UsageError: the weights are another model's.
        UntrustedError: the file is damaged, or a pickle without `trust`.
    """
    path = path / "model.safetensors" if path.is_dir() else path
    found = dict(_read_pickle(path) if trust and not _is_safetensors(path) else _read(path))
    expected = _shapes(sizes)
    if differing := found.keys() ^ expected.keys():
        raise UsageError(f"{path} and the configured model differ in '{min(differing)}'")
    weights = {name: _own_layout(path, name, found[name], expected[name]) for name in expected}
    return weights


def _is_safetensors(path: Path) -> bool:
    return path.suffix == ".safetensors"


def _read(path: Path) -> Iterator[tuple[str, torch.Tensor]]:
    if not _is_safetensors(path):
        raise UntrustedError(
            f"{path} is not a safetensors file and may run code when it is read; convert it, or "
            "give --trust-checkpoint if you know where it comes from"
        )
    try:
        with safe_open(path, framework="pt") as file:
            for name in file.keys():  # noqa: SIM118
                if own := _own_name(name):
                    yield own, file.get_tensor(name)
    except (SafetensorError, OSError) as error:
        raise UntrustedError(f"{path} cannot be read: {error}") from None


def _read_pickle(path: Path) -> Iterator[tuple[str, torch.Tensor]]:
    try:
        values = torch.load(path, map_location="cpu", weights_only=True)
        tensors = [(str(name), torch.as_tensor(value)) for name, value in values.items()]
    except Exception as error:
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise UntrustedError(f"{path} is no file of tensors alone: {reason}") from None
    for name, value in tensors:
        if own := _own_name(name):
            yield own, value


def _own_name(name: str) -> str | None:
    """The name here, or None for what is stored twice or not a weight."""
    if name == _HEAD or name.endswith(_MASKS):
        return None
    return name if name.startswith("transformer.") else f"transformer.{name}"


def _own_layout(path: Path, name: str, value: torch.Tensor, shape: torch.Size) -> torch.Tensor:
    value = value.float()
    if name.endswith(_TRANSPOSED) and value.dim() == 2:
        value = value.t()
    if name == _EMBEDDING and value.dim() == 2 and len(value) < shape[0]:
        padding = value.mean(dim=0, keepdim=True).expand(shape[0] - len(value), -1)
        value = torch.cat([value, padding])
    if value.shape != shape:
        raise UsageError(
            f"{path}: '{name}' is {list(value.shape)} but the configured model has {list(shape)}"
        )
    return value.contiguous()


def _shapes(sizes: ModelSizes) -> dict[str, torch.Size]:
    from toolkit.model.gpt2 import GPT2

    with torch.device("meta"):
        model = GPT2(sizes)
    return {name: parameter.shape for name, parameter in model.named_parameters()}
