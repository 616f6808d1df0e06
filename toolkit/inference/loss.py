"""Loss of a model over tokens, on any number of ranks."""

import math
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
import torch

from toolkit.data.batches import Batch
from toolkit.engines.ranks import Ranks
from toolkit.inference.trained import Trained
from toolkit.model.loss import IGNORE_INDEX


@dataclass(frozen=True)
class TextLoss:
    """What a model makes of a text.

    Attributes:
        nats: sum of -log p over all targets.
        tokens: number of targets.
        bytes: of the text that the targets are; the end of a document is none.
    """

    nats: float
    tokens: int
    bytes: int

    @property
    def loss(self) -> float:
        """Mean over the targets, in nats."""
        return self.nats / self.tokens

    @property
    def perplexity(self) -> float:
        """e to the loss; infinite where that is too large for a number."""
        try:
            return math.exp(self.loss)
        except OverflowError:
            return math.inf

    @property
    def bits_per_byte(self) -> float | None:
        """Bits that the text would be coded in, for each of its bytes: whatever the tokenizer."""
        return self.nats / math.log(2) / self.bytes if self.bytes else None


@torch.inference_mode()
def text_loss(trained: Trained, batches: Iterable[Batch], ranks: Ranks) -> TextLoss:
    """Sum over this rank's batches, then over the ranks.

    Args:
        trained: the model, whole on every rank.
        batches: inputs and targets, each [B, T] int64.
        ranks: that share the work.
    """
    lengths = np.zeros(max(trained.sizes.vocab_size, trained.tokenizer.size), dtype=np.int64)
    known = trained.tokenizer.byte_lengths()
    lengths[: len(known)] = known
    totals = torch.zeros(3, dtype=torch.float64)
    for tokens, targets in batches:
        inputs, wanted = (torch.from_numpy(part).to(trained.device) for part in (tokens, targets))
        # One sequence at a time: the sum is then the same however they are shared out.
        for row, target in zip(inputs.split(1), wanted.split(1), strict=True):
            totals[0] += trained.model(row, target).double().cpu()
        valid = targets[targets != IGNORE_INDEX]
        totals[1] += valid.size
        totals[2] += int(lengths[valid].sum())
    nats, count, size = ranks.sum(totals).tolist()
    return TextLoss(nats, int(count), int(size))
