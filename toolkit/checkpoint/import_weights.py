"""Weights in: from the layout of transformers' GPT2LMHeadModel to the names and layout here."""

import re
from collections.abc import Iterable, Iterator
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open

from toolkit.checkpoint.description import check_config, check_vocabulary, compare
from toolkit.checkpoint.layout import EMBEDDING, HEAD, POSITIONS, TRANSPOSED
from toolkit.checkpoint.store import MANIFEST
from toolkit.errors import UntrustedError, UsageError
from toolkit.model.sizes import GPT2_VOCAB_SIZE, ModelSizes

# Constants of older files: the causal mask and its fill value.
_MASKS = (".attn.bias", ".attn.masked_bias")
_BLOCK = re.compile(r"transformer\.h\.(\d+)\.")


def read_weights(
    path: Path, sizes: ModelSizes, *, trust: bool, crop: bool = False
) -> dict[str, torch.Tensor]:
    """Return weights in this project's layout and names, fp32, read from the other one.

    Rows that pad GPT-2's vocabulary become the mean of the others, so that they are as unlikely as
    an average token.

    Args:
        path: a safetensors file, or a folder with `model.safetensors`; a pickle where `trust`.
        sizes: the model they are for.
        trust: let PyTorch's restricted unpickler read it; even then only tensors are accepted.
        crop: drop positions beyond the model's block_size.

    Raises:
        UsageError: the weights are another model's, or of a run of this toolkit.
        UntrustedError: the file is damaged, or a pickle without `trust`.
    """
    path = _weights_file(path)
    check_config(path.parent, sizes)
    found = _by_own_name(
        path, _read_pickle(path) if trust and not _is_safetensors(path) else _read(path)
    )
    head = found.pop(HEAD, None)
    compare(path, "n_layer", _depth(found), sizes)
    expected = _shapes(sizes)
    if differing := found.keys() ^ expected.keys():
        raise UsageError(f"{path} and the configured model differ in '{min(differing)}'")
    if head is not None and not torch.equal(head, found[EMBEDDING]):
        raise UsageError(f"{path}: '{HEAD}' is not the token embedding, as it is in GPT-2")
    own = {name: _own_layout(path, name, found[name], expected[name]) for name in expected}
    compare(path, "n_embd", own[EMBEDDING].shape[1], sizes)
    check_vocabulary(path, len(own[EMBEDDING]), sizes.vocab_size)
    own[EMBEDDING] = _padded(own[EMBEDDING], sizes.vocab_size)
    own[POSITIONS] = _cropped(path, own[POSITIONS], sizes, crop=crop)
    for name, value in own.items():
        if value.shape != expected[name]:
            raise _another_shape(path, name, value, expected[name])
    return {name: value.contiguous() for name, value in own.items()}


def _weights_file(path: Path) -> Path:
    if run := _run_of(path):
        raise UsageError(
            f"{path} is of a run of this toolkit; import what `toolkit checkpoint export {run}` "
            f"writes, or start that run again to resume it"
        )
    if not path.exists():
        raise UsageError(f"{path}: no such file or folder")
    file = path / "model.safetensors" if path.is_dir() else path
    if not file.exists():
        raise UsageError(
            f"{file}: no such file; weights under another name are given as that file, weights in "
            f"several files are not read"
        )
    return file


def _run_of(path: Path) -> Path | None:
    """The run whose folder, checkpoints or part of one `path` is; an export is none of these."""
    for folder in (path, *list(path.parents)[:3]):
        checkpoints = folder / "checkpoints"
        is_part = path == folder or path.is_relative_to(checkpoints)
        if is_part and any(checkpoints.glob(f"step_*/{MANIFEST}")):
            return folder
    return None


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
        # PyTorch's own message advises to read it without any restriction.
        raise UntrustedError(
            f"{path} is no file of tensors alone ({type(error).__name__})"
        ) from None
    yield from tensors


def _own_name(name: str) -> str | None:
    """The name here, or None for what is not a weight."""
    if name.endswith(_MASKS):
        return None
    if name == HEAD:
        return name
    return name if name.startswith("transformer.") else f"transformer.{name}"


def _depth(names: Iterable[str]) -> int:
    """Blocks from the first on; a later one that stands alone is no depth."""
    blocks = {int(match[1]) for name in names if (match := _BLOCK.match(name))}
    return next(number for number in range(len(blocks) + 1) if number not in blocks)


def _own_layout(path: Path, name: str, value: torch.Tensor, shape: torch.Size) -> torch.Tensor:
    if not value.is_floating_point():
        raise UsageError(f"{path}: '{name}' is {value.dtype}, which weights are not")
    if not value.isfinite().all():
        raise UsageError(f"{path}: '{name}' holds values that are not finite")
    if value.dim() != len(shape):
        raise _another_shape(path, name, value, shape)
    return (value.t() if name.endswith(TRANSPOSED) else value).float()


def _padded(embedding: torch.Tensor, rows: int) -> torch.Tensor:
    """Give the embedding of a vocabulary, GPT-2's if its size differs, other rows of padding."""
    if len(embedding) == rows:
        return embedding
    tokens = embedding[:GPT2_VOCAB_SIZE]
    padding = tokens.mean(dim=0, keepdim=True).expand(rows - GPT2_VOCAB_SIZE, -1)
    return torch.cat([tokens, padding])


def _cropped(path: Path, positions: torch.Tensor, sizes: ModelSizes, *, crop: bool) -> torch.Tensor:
    if len(positions) > sizes.block_size and not crop:
        raise UsageError(
            f"{path} has {len(positions):,} positions, but the run's model.block_size is "
            f"{sizes.block_size:,}; --crop drops those beyond it"
        )
    positions = positions[: sizes.block_size]
    compare(path, "block_size", len(positions), sizes)
    return positions


def _another_shape(path: Path, name: str, value: torch.Tensor, shape: torch.Size) -> UsageError:
    found = list(value.shape)
    return UsageError(f"{path}: '{name}' is {found} but the configured model has {list(shape)}")


def _shapes(sizes: ModelSizes) -> dict[str, torch.Size]:
    from toolkit.model.gpt2 import GPT2

    with torch.device("meta"):
        model = GPT2(sizes)
    return {name: parameter.shape for name, parameter in model.named_parameters()}
