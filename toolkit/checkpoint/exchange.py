"""GPT-2 weights in and out of the layout of transformers' GPT2LMHeadModel.

Names are the same. Its linear layers are Conv1D, whose weights are [in, out] where ours are
[out, in]; its head is the token embedding, stored once; its vocabulary has no padding.
"""

import json
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open

from toolkit.checkpoint.position import Position, read_position
from toolkit.checkpoint.state import PortableState
from toolkit.checkpoint.tensors import Entry, write_tensors
from toolkit.data.durable import publish, temporary_name, write_durably
from toolkit.errors import SaveError, UntrustedError, UsageError
from toolkit.model.sizes import GPT2_VOCAB_SIZE, ModelSizes

_TRANSPOSED = ("c_attn.weight", "c_fc.weight", "c_proj.weight")
_EMBEDDING = "transformer.wte.weight"
_HEAD = "lm_head.weight"
_ACTIVATION, _EPSILON = "gelu_new", 1e-5
# Constants of older files: the causal mask and its fill value.
_MASKS = (".attn.bias", ".attn.masked_bias")


def export(checkpoint: Path, folder: Path) -> Path:
    """Write a verified checkpoint's weights as `model.safetensors`, beside a `config.json`.

    `GPT2LMHeadModel.from_pretrained(folder)` reads them. One tensor at a time is in memory.

    An earlier export stays until all of the new one is on the disk.

    Returns:
        The file of weights.

    Raises:
        SaveError: it cannot be written.
    """
    position = read_position(checkpoint)
    weights = folder / "model.safetensors"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with ExitStack() as files:
            state = PortableState(checkpoint, files)
            entries = [_entry(state, name, shape) for name, shape in position.shapes.items()]
            write_tensors(temporary_name(weights), entries)
        config = json.dumps(_config(position), indent=2) + "\n"
        write_durably(folder / "config.json", config.encode())
        publish(weights)
    except OSError as error:
        with suppress(OSError):
            temporary_name(weights).unlink()
        raise SaveError(f"{folder}: cannot be exported to: {error.strerror}") from None
    return weights


def _entry(state: PortableState, name: str, shape: list[int]) -> Entry:
    cut = [min(shape[0], GPT2_VOCAB_SIZE), *shape[1:]] if name == _EMBEDDING else shape
    is_transposed = name.endswith(_TRANSPOSED)

    def read() -> torch.Tensor:
        whole = state.whole("parameter", name, shape)
        return whole.t() if is_transposed else whole[: cut[0]]

    return Entry(name, tuple(reversed(cut) if is_transposed else cut), read)


def _config(position: Position) -> dict[str, Any]:
    model = position.config["model"]
    vocab_size = min(model["vocab_size"], GPT2_VOCAB_SIZE)
    end_of_text = GPT2_VOCAB_SIZE - 1 if vocab_size == GPT2_VOCAB_SIZE else None
    return {
        "model_type": "gpt2",
        "architectures": ["GPT2LMHeadModel"],
        "n_layer": model["n_layer"],
        "n_head": model["n_head"],
        "n_embd": model["n_embd"],
        "n_positions": model["block_size"],
        "vocab_size": vocab_size,
        "activation_function": _ACTIVATION,
        "layer_norm_epsilon": _EPSILON,
        "resid_pdrop": model["dropout"],
        "embd_pdrop": model["dropout"],
        "attn_pdrop": model["dropout"],
        "tie_word_embeddings": True,
        "bos_token_id": end_of_text,
        "eos_token_id": end_of_text,
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
    if not path.exists():
        raise UsageError(f"{path}: no such file or folder")
    path = path / "model.safetensors" if path.is_dir() else path
    if not path.exists():
        raise UsageError(f"{path}: no such file; weights in several files are not read")
    _check_described(path.parent / "config.json", sizes)
    found = _by_own_name(
        path, _read_pickle(path) if trust and not _is_safetensors(path) else _read(path)
    )
    head = found.pop(_HEAD, None)
    expected = _shapes(sizes)
    if differing := found.keys() ^ expected.keys():
        raise UsageError(f"{path} and the configured model differ in '{min(differing)}'")
    if head is not None and not torch.equal(head, found[_EMBEDDING]):
        raise UsageError(f"{path}: '{_HEAD}' is not the token embedding, as it is in GPT-2")
    return {name: _own_layout(path, name, found[name], expected[name]) for name in expected}


def _check_described(file: Path, sizes: ModelSizes) -> None:
    """Compare what shapes cannot show with the description beside the weights, if there is one."""
    try:
        described = json.loads(file.read_bytes())
    except (OSError, ValueError):
        return
    ours = {
        "n_head": sizes.n_head,
        "activation_function": _ACTIVATION,
        "layer_norm_epsilon": _EPSILON,
    }
    for key, value in ours.items():
        if isinstance(described, dict) and described.get(key, value) != value:
            raise UsageError(f"{file}: {key} is {described[key]}, but the model has {value}")


def _by_own_name(
    path: Path, tensors: Iterator[tuple[str, torch.Tensor]]
) -> dict[str, torch.Tensor]:
    found: dict[str, torch.Tensor] = {}
    for name, value in tensors:
        own = _own_name(name)
        if own in found:
            raise UsageError(f"{path}: '{own}' is there twice")
        if own is not None:
            found[own] = value
    return found


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
                yield name, file.get_tensor(name)
    except (SafetensorError, OSError) as error:
        raise UntrustedError(f"{path} cannot be read: {error}") from None


def _read_pickle(path: Path) -> Iterator[tuple[str, torch.Tensor]]:
    try:
        values = torch.load(path, map_location="cpu", weights_only=True)
        tensors = [(str(name), torch.as_tensor(value)) for name, value in values.items()]
    except Exception as error:
        # PyTorch's own words advise to read it without any restriction.
        raise UntrustedError(
            f"{path} is no file of tensors alone ({type(error).__name__})"
        ) from None
    yield from tensors


def _own_name(name: str) -> str | None:
    """The name here, or None for what is not a weight."""
    if name.endswith(_MASKS):
        return None
    if name == _HEAD:
        return name
    return name if name.startswith("transformer.") else f"transformer.{name}"


def _own_layout(path: Path, name: str, value: torch.Tensor, shape: torch.Size) -> torch.Tensor:
    if not value.is_floating_point():
        raise UsageError(f"{path}: '{name}' is {value.dtype}, which weights are not")
    if not value.isfinite().all():
        raise UsageError(f"{path}: '{name}' holds values that are not finite")
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
