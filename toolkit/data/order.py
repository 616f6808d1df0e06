"""Which sequences a step trains on: a function of the seed and the step, of nothing else.

Positions count the sequences of a run from its start. Step s of `sequences_per_step` G takes
positions [s G, (s + 1) G); position p lies in epoch p // N of a data set of N sequences. So each
sequence comes once per epoch, a batch may lie across the border of two epochs, and neither the
number of ranks nor how a run got to a step changes what it sees.
"""

from functools import lru_cache

import numpy as np


class SequenceOrder:
    """The order in which `n_sequences` are visited, epoch after epoch.

    Unshuffled, an epoch counts up; shuffled, it is the permutation that numpy's default generator
    draws for (seed, epoch).
    """

    def __init__(self, n_sequences: int, *, seed: int, shuffle: bool) -> None:
        self.n_sequences = n_sequences
        self.seed = seed
        self.shuffle = shuffle
        # A batch lies across two epochs at most.
        self._permutation = lru_cache(maxsize=2)(self._draw)

    def ids(self, first: int, stop: int) -> np.ndarray:
        """Return the sequences at positions [first, stop) as an int64 array [stop - first]."""
        epochs, within = np.divmod(np.arange(first, stop, dtype=np.int64), self.n_sequences)
        if not self.shuffle:
            return within
        ids = np.empty_like(within)
        for epoch in np.unique(epochs):
            here = epochs == epoch
            ids[here] = self._permutation(int(epoch))[within[here]]
        return ids

    def _draw(self, epoch: int) -> np.ndarray:
        return np.random.default_rng([self.seed, epoch]).permutation(self.n_sequences)


def micro_batch_slots(
    micro_step: int, *, micro_batch_size: int, world_size: int, rank: int
) -> slice:
    """Return the slots of the global batch that a rank works on in a micro-step.

    One wave of all ranks takes the next `world_size` x `micro_batch_size` slots, rank by rank;
    unshuffled, rank r starts at token micro_batch_size x seq_len x r.
    """
    first = (micro_step * world_size + rank) * micro_batch_size
    return slice(first, first + micro_batch_size)
