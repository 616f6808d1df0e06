"""Keys and values of the positions that a model has seen, so that the next one costs one position.

Pope et al. 2022, "Efficiently Scaling Transformer Inference", section 2.
"""

import torch

from toolkit.model.sizes import ModelSizes


class LayerCache:
    """Keys and values of one block, each [B, n_head, block_size, head_dim] when full."""

    def __init__(self, keys: torch.Tensor, values: torch.Tensor) -> None:
        self._keys = keys
        self._values = values
        self.length = 0

    def append(self, k: torch.Tensor, v: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Add those of T positions, [B, n_head, T, head_dim]; return those of all so far."""
        start, self.length = self.length, self.length + k.shape[2]
        self._keys[:, :, start : self.length] = k
        self._values[:, :, start : self.length] = v
        return self._keys[:, :, : self.length], self._values[:, :, : self.length]


class KeyValueCache:
    """Keys and values of every block, in memory for `block_size` positions that is taken at once.

    Args:
        sizes: of the model.
        batch: sequences that are continued side by side.
        device: the model's.
    """

    def __init__(self, sizes: ModelSizes, *, batch: int, device: torch.device) -> None:
        shape = (2, batch, sizes.n_head, sizes.block_size, sizes.n_embd // sizes.n_head)
        self.layers = [LayerCache(*torch.empty(shape, device=device)) for _ in range(sizes.n_layer)]

    @property
    def length(self) -> int:
        """Positions that are in it."""
        return self.layers[0].length
