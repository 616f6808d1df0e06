"""Every configuration of a run on a number of GPUs, each with the largest micro-batch that fits.

A larger micro-batch is never slower in this model: computation is proportional to tokens, and
gathers and reductions are as many or fewer. So of each shape - strategy, mode, replica groups, loss
and checkpointing - the largest stands for all smaller ones.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from toolkit.config import RunConfig
from toolkit.engines.strategies import ALONE, Strategy, replicas_of, supported_pairs
from toolkit.memory.hardware import Gpu
from toolkit.memory.largest import StepTokens
from toolkit.memory.rows import whole_micro_steps
from toolkit.model.sizes import Loss
from toolkit.planning.cluster import Cluster
from toolkit.planning.largest import Walks
from toolkit.program.events import Program
from toolkit.program.readers.peak import highest
from toolkit.program.settings import StepSettings, settings_of_run

VARIANTS: tuple[tuple[Loss, bool], ...] = (
    ("plain", False),
    ("chunked", False),
    ("plain", True),
    ("chunked", True),
)
"""Loss and checkpointing, in the order of what they compute."""


@dataclass(frozen=True)
class Candidate:
    """A shape in one micro-batch.

    Attributes:
        size: the largest micro-batch that fits, 0 where none does.
    """

    walks: Walks
    size: int

    @property
    def fits(self) -> bool:
        """Whether a micro-batch fits."""
        return self.size > 0

    @property
    def is_largest(self) -> bool:
        """Whether no larger micro-batch could be used, whatever fits."""
        return self.size == self.walks.sizes[-1]

    @cached_property
    def settings(self) -> StepSettings:
        """With the largest micro-batch that fits, or the smallest where none does."""
        return self.walks.settings(self.size or self.walks.sizes[0])

    @cached_property
    def program(self) -> Program:
        """The events of its step."""
        return self.walks.program(self.size or self.walks.sizes[0])

    @cached_property
    def peak(self) -> int:
        """Allocated bytes of a rank at the peak."""
        return highest(self.program)

    def on(self, gpu: Gpu) -> "Candidate":
        """Return the same shape on a GPU of more memory."""
        if self.is_largest:
            return self
        return Candidate(self.walks, self.walks.largest(gpu))


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

    def size(self, cluster: Cluster) -> int:
        """Return how many configurations there are."""
        sizes = self.tokens.micro_batches(seq_len=self.config.data.seq_len, world_size=cluster.gpus)
        return sum(1 for _ in self.shapes(cluster)) * len(VARIANTS) * len(sizes)

    def shapes(self, cluster: Cluster) -> Iterator[StepSettings]:
        """Yield strategies, modes and replica groups."""
        one = self.config.batch.model_copy(update={"micro_batch_size": 1})
        smallest = self.config.model_copy(update={"batch": one})
        whole = whole_micro_steps(smallest, self.tokens, cluster.gpus)
        for strategy, mode in supported_pairs():
            if strategy not in self.strategies or (strategy == ALONE) != (cluster.gpus == 1):
                continue
            for replicas in replica_groups(strategy, cluster):
                yield settings_of_run(
                    whole,
                    strategy,
                    world_size=cluster.gpus,
                    replicas=replicas,
                    device=cluster.device,
                    accumulation=mode,
                )

    def variants(self, shape: StepSettings) -> Iterator[Walks]:
        """Yield the shape with each loss, without and with checkpointing."""
        for loss, checkpointing in VARIANTS:
            step = replace(shape, loss=loss, activation_checkpointing=checkpointing)
            yield Walks(step, self.tokens)


def replica_groups(strategy: Strategy, cluster: Cluster) -> list[int]:
    """Return the numbers of replica groups: of whole machines, or equal parts of a single one."""
    if replicas_of(strategy) == 1:
        return [1]
    machines = cluster.gpus // cluster.per_machine
    units = machines if machines > 1 else cluster.gpus
    return [n for n in range(2, units + 1) if units % n == 0 and n < cluster.gpus]
