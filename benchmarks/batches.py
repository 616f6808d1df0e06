"""The tokens cases train on: drawn at random, or from prepared shards."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from benchmarks.record import Case
from toolkit.data.batches import Batch, GlobalBatches, TokenDataset
from toolkit.data.stream import TokenStream
from toolkit.training.step import MicroBatch

SEED = 1


class RandomSequences:
    """As many sequences as anyone asks for; each a function of its number, like a data set's."""

    def __init__(self, *, vocab_size: int, seq_len: int) -> None:
        self.vocab_size = vocab_size
        self.seq_len = seq_len

    def __len__(self) -> int:
        """A number of sequences that no benchmark uses up."""
        return 2**40

    def sequences(self, ids: np.ndarray) -> Batch:
        """Return inputs and targets of the sequences `ids` [n], two int64 arrays [n, seq_len]."""
        shape = self.seq_len + 1
        draws = [np.random.default_rng([SEED, int(i)]) for i in ids]
        tokens = np.stack([draw.integers(self.vocab_size, size=shape) for draw in draws])
        return np.ascontiguousarray(tokens[:, :-1]), np.ascontiguousarray(tokens[:, 1:])


def build_batches(
    case: Case, *, micro_batch_size: int, rank: int, shards: Sequence[str]
) -> GlobalBatches:
    """Return one rank's part of every global batch, cut as a run's is.

    Raises:
        UsageError: shards are missing, of the wrong kind, or too few for one step.
        UntrustedError: shards are damaged.
    """
    return GlobalBatches(
        _dataset(case, shards),
        sequences_per_step=micro_batch_size * case.grad_accum_steps * case.world_size,
        micro_batch_size=micro_batch_size,
        grad_accum_steps=case.grad_accum_steps,
        world_size=case.world_size,
        rank=rank,
        seed=SEED,
        # Permuting that many numbers would take longer than the benchmark; random is random.
        shuffle=case.data == "real",
    )


def _dataset(case: Case, shards: Sequence[str]) -> Any:
    if case.data == "synthetic":
        return RandomSequences(vocab_size=case.model.vocab_size, seq_len=case.seq_len)
    stream = TokenStream(tuple(shards), vocab_size=case.model.vocab_size)
    return TokenDataset(stream, seq_len=case.seq_len)


def on_device(batches: Sequence[Batch], device: torch.device) -> list[MicroBatch]:
    """Return the micro-batches of a step as tensors on the device."""
    return [
        (torch.from_numpy(inputs).to(device), torch.from_numpy(targets).to(device))
        for inputs, targets in batches
    ]
