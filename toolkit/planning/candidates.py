"""Every configuration of a run on a number of GPUs, each with the largest micro-batch that fits.

A larger micro-batch is never slower in this model: computation is proportional to tokens, and
gathers and reductions are as many or fewer. So of each shape - strategy, mode, checkpointing, loss
and replica groups - the largest stands for all smaller ones.
"""

import gc
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cached_property

from toolkit.config import RunConfig
from toolkit.engines.strategies import Strategy, supported_pairs
from toolkit.memory.hardware import Gpu
from toolkit.memory.largest import StepTokens, largest_micro_batch
from toolkit.memory.rows import whole_micro_steps
from toolkit.model.sizes import Loss
from toolkit.planning.cluster import Cluster
from toolkit.program.events import Program
from toolkit.program.readers.peak import read_peak
from toolkit.program.settings import StepSettings, settings_of_run
from toolkit.program.step import write_step

_LOSSES: tuple[Loss, ...] = ("plain", "chunked")


@dataclass(frozen=True)
class Candidate:
    """A configuration, and whether it fits.

    Attributes:
        settings: with the largest micro-batch that fits, or the smallest where none does.
        is_largest: whether no larger micro-batch could be used, whatever fits.
    """

    settings: StepSettings
    fits: bool
    is_largest: bool

    @cached_property
    def program(self) -> Program:
        """The events of its step."""
        return write_step(self.settings)

    @cached_property
    def peak(self) -> int:
        """Allocated bytes of a rank at the peak."""
        return read_peak(self.program).total


@dataclass(frozen=True)
class Search:
    """The space that is searched.

    Attributes:
        tokens: of one step, all of which are used.
        strategies: that are considered.
    """

    config: RunConfig
    tokens: StepTokens
    strategies: Sequence[Strategy]

    def micro_batches(self, gpus: int) -> Sequence[int]:
        """Return the micro-batches that cut the step on so many GPUs, the smallest first."""
        return self.tokens.micro_batches(seq_len=self.config.data.seq_len, world_size=gpus)

    def size(self, cluster: Cluster) -> int:
        """Return how many configurations there are; checkpointing and loss are two each."""
        shapes = sum(1 for _ in self._shapes(cluster))
        return shapes * 2 * len(_LOSSES) * len(self.micro_batches(cluster.gpus))

    def candidates(self, cluster: Cluster) -> list[Candidate]:
        """Return the candidates of every shape.

        Checkpointing computes more for the same collectives, so where the largest micro-batch of
        all fits without it, that shape is not looked at.
        """
        found = []
        with _uncollected():
            for shape in self._shapes(cluster):
                for loss in _LOSSES:
                    for checkpointing in (False, True):
                        step = replace(shape, loss=loss, activation_checkpointing=checkpointing)
                        candidate = self._largest(step, cluster.gpu)
                        found.append(candidate)
                        if candidate.fits and candidate.is_largest:
                            break
        return found

    def with_gpu(self, candidates: Sequence[Candidate], gpu: Gpu) -> list[Candidate]:
        """Return the same shapes on a GPU of other memory, looking only at what that can change."""
        with _uncollected():
            return [
                each if each.fits and each.is_largest else self._largest(each.settings, gpu)
                for each in candidates
            ]

    def _largest(self, shape: StepSettings, gpu: Gpu) -> Candidate:
        sizes = self.micro_batches(shape.world_size)
        size = largest_micro_batch(shape, self.tokens, gpu)
        used = size or sizes[0]
        steps = self.tokens.grad_accum_steps(
            used, seq_len=shape.seq_len, world_size=shape.world_size
        )
        step = replace(shape, micro_batch_size=used, grad_accum_steps=steps)
        return Candidate(step, fits=size > 0, is_largest=size == sizes[-1])

    def _shapes(self, cluster: Cluster) -> Iterator[StepSettings]:
        """Strategies, modes and replica groups."""
        one = self.config.batch.model_copy(update={"micro_batch_size": 1})
        smallest = self.config.model_copy(update={"batch": one})
        whole = whole_micro_steps(smallest, self.tokens, cluster.gpus)
        for strategy, mode in supported_pairs():
            if strategy not in self.strategies or (strategy == "single") != (cluster.gpus == 1):
                continue
            for replicas in replica_groups(strategy, cluster):
                yield settings_of_run(
                    whole, strategy, world_size=cluster.gpus, replicas=replicas, accumulation=mode
                )


def replica_groups(strategy: Strategy, cluster: Cluster) -> list[int]:
    """Return the numbers of replica groups: of whole machines, or equal parts of a single one."""
    if strategy != "hsdp":
        return [1]
    machines = cluster.gpus // cluster.per_machine
    units = machines if machines > 1 else cluster.gpus
    return [n for n in range(2, units + 1) if units % n == 0 and n < cluster.gpus]


@contextmanager
def _uncollected() -> Iterator[None]:
    """Keep the collector from visiting every event again and again; none of them is in a cycle."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()
