"""What every case trains: model, optimizer, data and accumulation, the same for all."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from toolkit.config import OptimizerConfig
from toolkit.data.shards import HEADER_BYTES
from toolkit.data.writer import ShardWriter
from toolkit.model.gpt2 import GPT2
from toolkit.model.sizes import Loss, ModelSizes
from toolkit.training.optimizer import build_optimizer
from toolkit.training.step import MicroBatch

SEED = 1337
LR = 3e-4
GRAD_CLIP = 1.0


@dataclass(frozen=True, kw_only=True)
class Workload:
    """One size of the comparison.

    Attributes:
        micro_batch_size: sequences per rank and micro-step.
        steps_per_turn: optimizer steps of a case before the next case has the cores; the first of
            them is not timed.
        turns: how often each case has its turn; the first turn warms up and does not count.
    """

    n_layer: int
    n_head: int
    n_embd: int
    vocab_size: int
    seq_len: int
    micro_batch_size: int
    grad_accum_steps: int
    world_size: int
    steps_per_turn: int
    turns: int

    @property
    def sizes(self) -> ModelSizes:
        """The model's shapes; as many positions as a sequence has."""
        return ModelSizes(
            self.n_layer, self.n_head, self.n_embd, self.vocab_size, block_size=self.seq_len
        )

    @property
    def sequences_per_step(self) -> int:
        """Sequences of one optimizer step over all ranks."""
        return self.micro_batch_size * self.grad_accum_steps * self.world_size

    @property
    def tokens_per_step(self) -> int:
        """Tokens of one optimizer step over all ranks."""
        return self.sequences_per_step * self.seq_len

    def write_tokens(self, folder: Path) -> None:
        """Write one shard of random tokens, enough for every step without repeating any.

        Their frequencies fall as 1 / rank, as those of words do, so that there is something to
        learn: on uniform noise AdamW magnifies rounding until equal loops differ.
        """
        folder.mkdir(parents=True)
        steps = self.steps_per_turn * self.turns + 1
        count = steps * self.tokens_per_step + 1
        rank = np.arange(1, self.vocab_size + 1)
        tokens = np.random.default_rng(SEED).choice(
            self.vocab_size, size=count, p=(1 / rank) / (1 / rank).sum()
        )
        writer = ShardWriter(folder, shard_tokens=count, vocabulary_size=self.vocab_size)
        writer.append(tokens)
        writer.finish()

    def micro_batches(self, folder: Path, *, rank: int) -> Iterator[MicroBatch]:
        """Yield a rank's micro-batches in order, read as build-nanogpt's loader reads them.

        The shard is in memory as a whole; ranks take neighbouring pieces and step over each
        other's.
        """
        tokens = read_tokens(folder)
        shape = (self.micro_batch_size, self.seq_len)
        own = self.micro_batch_size * self.seq_len
        for start in range(rank * own, len(tokens) - own, own * self.world_size):
            piece = tokens[start : start + own + 1]
            yield piece[:-1].view(shape), piece[1:].view(shape)


def read_tokens(folder: Path) -> torch.Tensor:
    """Return all tokens of the shard in a folder as int64."""
    tokens = np.fromfile(next(folder.glob("*.bin")), "<u2", offset=HEADER_BYTES)
    return torch.from_numpy(tokens.astype(np.int64))


def build_model(workload: Workload, loss: Loss = "plain") -> GPT2:
    """Build the model with the weights that all cases start from."""
    torch.manual_seed(SEED)
    return GPT2(workload.sizes, loss=loss)


def build_adamw(model: torch.nn.Module) -> torch.optim.Optimizer:
    """Build the fused AdamW that all cases use."""
    return build_optimizer(model, OptimizerConfig(lr=LR))
