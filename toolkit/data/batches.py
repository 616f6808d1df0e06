"""Inputs and targets: of the global batch of a step, and of one pass over validation data."""

from collections.abc import Iterator

import numpy as np

from toolkit.data.order import SequenceOrder, micro_batch_slots
from toolkit.data.stream import TokenStream
from toolkit.errors import UsageError

Batch = tuple[np.ndarray, np.ndarray]
# What PyTorch's cross-entropy ignores by default; `toolkit.model.loss` has the same constant.
IGNORE_INDEX = -100


class TokenDataset:
    """A stream cut into sequences of `seq_len` tokens T.

    Sequence i is tokens [i T, (i + 1) T + 1): its inputs are the first T, its targets the last T.
    Neighbours share one token, so every token but the stream's first is predicted once. What is
    left at the end and doesn't fill a sequence is not used.

    Raises:
        UsageError: the stream doesn't fill one sequence.
    """

    def __init__(self, stream: TokenStream, *, seq_len: int) -> None:
        self.stream = stream
        self.seq_len = seq_len
        if len(self) == 0:
            raise UsageError(
                f"{stream.name}: {seq_len + 1} tokens are needed for one sequence of "
                f"{seq_len} and the token after it, but there are {len(stream)}; prepare more "
                f"text or lower data.seq_len"
            )

    def __len__(self) -> int:
        """Sequences in the stream."""
        return (len(self.stream) - 1) // self.seq_len

    def sequences(self, ids: np.ndarray) -> Batch:
        """Return inputs and targets of the sequences `ids` [n], two int64 arrays [n, seq_len]."""
        starts = [int(i) * self.seq_len for i in ids]
        tokens = np.stack([self.stream.read(s, s + self.seq_len + 1) for s in starts])
        return np.ascontiguousarray(tokens[:, :-1]), np.ascontiguousarray(tokens[:, 1:])


class GlobalBatches:
    """The global batch of every step, and the part of it that one rank works on.

    Raises:
        UsageError: one epoch is shorter than one global batch.
    """

    def __init__(
        self,
        dataset: TokenDataset,
        *,
        sequences_per_step: int,
        micro_batch_size: int,
        grad_accum_steps: int,
        world_size: int,
        rank: int,
        seed: int,
        shuffle: bool,
    ) -> None:
        if micro_batch_size * grad_accum_steps * world_size != sequences_per_step:
            raise ValueError(
                f"micro_batch_size {micro_batch_size} x grad_accum_steps {grad_accum_steps} x "
                f"world_size {world_size} is not sequences_per_step {sequences_per_step}"
            )
        _check_one_epoch_fills_a_step(dataset, sequences_per_step)
        self.dataset = dataset
        self.sequences_per_step = sequences_per_step
        self.micro_batch_size = micro_batch_size
        self.grad_accum_steps = grad_accum_steps
        self.world_size = world_size
        self.rank = rank
        self.order = SequenceOrder(len(dataset), seed=seed, shuffle=shuffle)

    def ids(self, step: int) -> np.ndarray:
        """Return the sequences of the global batch of `step`, counted from 0, as [G] int64."""
        first = step * self.sequences_per_step
        return self.order.ids(first, first + self.sequences_per_step)

    def micro_batches(self, step: int) -> list[Batch]:
        """Return this rank's `grad_accum_steps` pairs of inputs and targets, each [B, T] int64."""
        ids = self.ids(step)
        return [
            self.dataset.sequences(ids[self._slots(micro_step)])
            for micro_step in range(self.grad_accum_steps)
        ]

    def _slots(self, micro_step: int) -> slice:
        return micro_batch_slots(
            micro_step,
            micro_batch_size=self.micro_batch_size,
            world_size=self.world_size,
            rank=self.rank,
        )


def eval_batches(
    dataset: TokenDataset,
    *,
    micro_batch_size: int,
    world_size: int,
    rank: int,
    max_sequences: int | None = None,
) -> Iterator[Batch]:
    """Yield a rank's share of the first `max_sequences` sequences, as pairs of [B, T] int64.

    Every rank yields the same number of pairs, since under parameter sharding each forward is
    collective. Rows beyond the last sequence have inputs 0 and targets `IGNORE_INDEX`, so that
    each sequence counts once in a token-weighted mean.
    """
    count = min(len(dataset), max_sequences or len(dataset))
    waves = -(-count // (micro_batch_size * world_size))
    shape = (micro_batch_size, dataset.seq_len)
    for wave in range(waves):
        slots = micro_batch_slots(
            wave, micro_batch_size=micro_batch_size, world_size=world_size, rank=rank
        )
        inputs = np.zeros(shape, dtype=np.int64)
        targets = np.full(shape, IGNORE_INDEX, dtype=np.int64)
        ids = np.arange(slots.start, min(slots.stop, count))
        if ids.size:
            inputs[: ids.size], targets[: ids.size] = dataset.sequences(ids)
        yield inputs, targets


def _check_one_epoch_fills_a_step(dataset: TokenDataset, sequences_per_step: int) -> None:
    if len(dataset) >= sequences_per_step:
        return
    seq_len, present = dataset.seq_len, len(dataset.stream)
    raise UsageError(
        f"{dataset.stream.name}: one step needs {sequences_per_step * seq_len + 1} tokens "
        f"({sequences_per_step} sequences of {seq_len} and the token after them), but there are "
        f"{present}; prepare more text, or lower batch.tokens_per_step to at most "
        f"{len(dataset) * seq_len}"
    )
