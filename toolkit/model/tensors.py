"""The trainable tensors of GPT-2 with their shapes, for formulas that must not import torch."""

from typing import NamedTuple

from toolkit.model.sizes import ModelSizes


class Tensor(NamedTuple):
    """One trainable tensor: the module that owns it, its block (-1 outside), rows and columns."""

    module: str
    layer: int
    rows: int
    columns: int
    is_matrix: bool

    @property
    def elements(self) -> int:
        """Number of elements."""
        return self.rows * self.columns


def linear(module: str, layer: int, inputs: int, outputs: int) -> list[Tensor]:
    """Return weight and bias of a linear module."""
    return [
        Tensor(module, layer, outputs, inputs, True),
        Tensor(module, layer, outputs, 1, False),
    ]


def norm(module: str, layer: int, width: int) -> list[Tensor]:
    """Return weight and bias of a LayerNorm."""
    return [Tensor(module, layer, width, 1, False)] * 2


def block_tensors(layer: int, width: int) -> list[Tensor]:
    """Return the twelve tensors of a block, 12 d^2 + 13 d elements, in the model's order."""
    return [
        *norm("ln_1", layer, width),
        *linear("attn.c_attn", layer, width, 3 * width),
        *linear("attn.c_proj", layer, width, width),
        *norm("ln_2", layer, width),
        *linear("mlp.c_fc", layer, width, 4 * width),
        *linear("mlp.c_proj", layer, 4 * width, width),
    ]


def root_tensors(sizes: ModelSizes) -> list[Tensor]:
    """Return what no block owns: both embeddings, of which the head is one, and the last norm."""
    return [
        Tensor("wte", -1, sizes.vocab_size, sizes.n_embd, True),
        Tensor("wpe", -1, sizes.block_size, sizes.n_embd, True),
        *norm("ln_f", -1, sizes.n_embd),
    ]


def model_tensors(sizes: ModelSizes) -> list[Tensor]:
    """Return every trainable tensor once."""
    wte, wpe, *last = root_tensors(sizes)
    blocks = [t for layer in range(sizes.n_layer) for t in block_tensors(layer, sizes.n_embd)]
    return [wte, wpe, *blocks, *last]
