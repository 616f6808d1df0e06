"""Tensors told apart by their bits, computed where they are and without waiting for the device."""

from functools import cache
from typing import Any

import torch

SAMPLE = 2**15
"""Elements of a tensor that are looked at, evenly over it: all of a batch of tokens, few of one of
images, whose bits would take longer to read than a GPU takes for the step."""


class Bits:
    """Shape, dtype and a hash of a tensor's values; equal tensors have equal `text`."""

    def __init__(self, tensor: torch.Tensor) -> None:
        self._kind = f"{tensor.dtype}{list(tensor.shape)}"
        flat = local_part(tensor).detach().reshape(-1)
        words = _words(flat[:: -(-flat.numel() // SAMPLE) or 1])
        self._hash = (words * _weights(flat.device)[: len(words)]).sum()

    def text(self) -> str:
        """Return it; this may wait for the device."""
        return f"{self._kind}{int(self._hash)}"


def sum_of_bits(tensor: torch.Tensor) -> int:
    """Return the sum of the bits of all of a tensor's values; this may wait for the device."""
    return int(_words(tensor.detach().reshape(-1)).sum(dtype=torch.int64))


def _words(flat: torch.Tensor) -> torch.Tensor:
    """Return the values' bits as integers, several for a value of more than 32 bits."""
    integer = {1: torch.int8, 2: torch.int16}.get(flat.element_size(), torch.int32)
    return flat.contiguous().view(integer)


@cache
def _weights(device: torch.device) -> torch.Tensor:
    """Return odd random numbers, as [4 SAMPLE] int64, drawn from a generator of their own."""
    limits = torch.iinfo(torch.int64)
    generator = torch.Generator().manual_seed(0)
    drawn = torch.randint(limits.min, limits.max, (4 * SAMPLE,), generator=generator)
    return (drawn | 1).to(device)


def local_part(tensor: Any) -> torch.Tensor:
    """Return what this rank holds of a tensor, all of it unless it is a DTensor."""
    return tensor.to_local() if hasattr(tensor, "placements") else tensor
