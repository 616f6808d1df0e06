"""GPT-2's published sizes and the number of parameters that follow from them."""

from dataclasses import dataclass
from typing import Literal, NamedTuple

Preset = Literal["gpt2", "gpt2-medium", "gpt2-large", "gpt2-xl"]
Loss = Literal["plain", "chunked"]
"""From whole logits, or chunk by chunk of the tokens."""


class Shape(NamedTuple):
    """Depth, heads and width of a transformer."""

    n_layer: int
    n_head: int
    n_embd: int


# Depth and width: Radford et al. 2019, "Language Models are Unsupervised Multitask Learners",
# table 2. Heads: `n_head` in the `hparams.json` released with each model; all give 64 per head.
PRESETS: dict[Preset, Shape] = {
    "gpt2": Shape(n_layer=12, n_head=12, n_embd=768),
    "gpt2-medium": Shape(n_layer=24, n_head=16, n_embd=1024),
    "gpt2-large": Shape(n_layer=36, n_head=20, n_embd=1280),
    "gpt2-xl": Shape(n_layer=48, n_head=25, n_embd=1600),
}

# GPT-2's byte-pair vocabulary, and the same padded to a multiple of 64, which matrix units like.
GPT2_VOCAB_SIZE = 50_257
PADDED_VOCAB_SIZE = 50_304
# To a multiple of 1,024, as 128 for each of 8 ranks of tensor parallelism: more is not padding.
_MOST_PADDED_VOCAB_SIZE = 51_200
GPT2_BLOCK_SIZE = 1_024


def is_gpt2_vocabulary(rows: int) -> bool:
    """Whether so many rows are GPT-2's vocabulary, padded or not."""
    return GPT2_VOCAB_SIZE <= rows <= _MOST_PADDED_VOCAB_SIZE


@dataclass(frozen=True)
class ModelSizes:
    """All numbers that fix the shapes of a GPT-2: what the model and the estimates are built on."""

    n_layer: int
    n_head: int
    n_embd: int
    vocab_size: int
    block_size: int

    @property
    def parameter_count(self) -> int:
        """Trainable parameters, the tied head counted once."""
        return parameter_count(self.n_layer, self.n_embd, self.vocab_size, self.block_size)

    @property
    def block_parameters(self) -> int:
        """Parameters of one block, as `parameter_count` adds them up."""
        return 12 * self.n_embd**2 + 13 * self.n_embd

    @property
    def largest_vector(self) -> int:
        """Elements of the largest bias, that of the MLP's first projection."""
        return 4 * self.n_embd


def preset_sizes(
    preset: Preset, *, vocab_size: int = PADDED_VOCAB_SIZE, block_size: int = GPT2_BLOCK_SIZE
) -> ModelSizes:
    """Return the sizes of a published GPT-2."""
    return ModelSizes(**PRESETS[preset]._asdict(), vocab_size=vocab_size, block_size=block_size)


def parameter_count(n_layer: int, n_embd: int, vocab_size: int, block_size: int) -> int:
    """Return the number of trainable parameters of GPT-2; 124,439,808 for the smallest.

    With C = `n_embd`, counting weights + biases:

        token and position embedding    vocab_size * C + block_size * C
        per block: two layer norms      2 * (C + C)
                   query, key, value    3 * C * C + 3 * C
                   attention output     C * C + C
                   MLP up               4 * C * C + 4 * C
                   MLP down             4 * C * C + C
                   sum                  12 * C * C + 13 * C
        last layer norm                 C + C

    The head shares the token embedding's matrix and adds nothing; heads only split C.
    """
    embeddings = (vocab_size + block_size) * n_embd
    block = 12 * n_embd * n_embd + 13 * n_embd
    return embeddings + n_layer * block + 2 * n_embd
