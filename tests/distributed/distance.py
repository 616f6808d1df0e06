"""How far apart two short runs are, written down without the toolkit's own comparison."""

from collections.abc import Iterable, Mapping, Sequence

import torch

Tensors = Mapping[str, torch.Tensor]


def farthest_number(found: Sequence[float], right: Sequence[float]) -> float:
    """Return the largest relative distance of two lists of numbers."""
    assert len(found) == len(right)
    return _largest(abs(a - b) / abs(b) for a, b in zip(found, right, strict=True))


def farthest_tensor(found: Tensors, right: Tensors) -> float:
    """Return the largest relative L2 distance of two tensors of one name, key biases excluded."""
    assert found.keys() == right.keys()
    pairs = ((_without_keys(n, found[n]), _without_keys(n, right[n])) for n in right)
    return _largest(float((a - b).norm() / b.norm()) for a, b in pairs)


def farthest_key_bias(found: Tensors, right: Tensors) -> float:
    """Return the largest distance of two key biases, whose gradient is exactly zero."""
    names = [name for name in right if _holds_keys(name)]
    assert names
    return _largest(float((_keys(found[n]) - _keys(right[n])).abs().max()) for n in names)


def _largest(distances: Iterable[float]) -> float:
    """Return the largest; NaN if any is, which Python's own `max` may pass over."""
    return float(torch.tensor(list(distances), dtype=torch.float64).max())


def _holds_keys(name: str) -> bool:
    return name.endswith("attn.c_attn.bias")


def _keys(bias: torch.Tensor) -> torch.Tensor:
    return bias.double().chunk(3)[1]


def _without_keys(name: str, tensor: torch.Tensor) -> torch.Tensor:
    if not _holds_keys(name):
        return tensor.double()
    query, _, value = tensor.double().chunk(3)
    return torch.cat([query, value])
