"""One unit of sharding: what is gathered and reduced together."""

from dataclasses import dataclass

from toolkit.engines.strategies import Accumulation
from toolkit.model.tensors import Tensor


def slice_of(tensor: Tensor, shards: int) -> int:
    """Return the elements of the largest slice of dimension 0; all slices are padded to it."""
    return -(-tensor.rows // shards) * tensor.columns


@dataclass(frozen=True)
class UnitSizes:
    """One unit of sharding: its sizes in elements, and how it accumulates.

    Attributes:
        shard: of one rank's slice, padded.
        largest: of the largest tensor.
        mode: how its gradients accumulate.
        exchanges: it sends bf16 and sums in fp32.
        gathers_again: its parameters are freed between forward and backward.
        stays_gathered: they are gathered once per window.
    """

    tensors: tuple[Tensor, ...]
    elements: int
    shard: int
    gathered: int
    largest: int
    mode: Accumulation = "sharded"
    exchanges: bool = False
    gathers_again: bool = False
    stays_gathered: bool = False

    @classmethod
    def of(cls, tensors: list[Tensor], shards: int) -> "UnitSizes":
        """Return the unit of these tensors."""
        shard = sum(slice_of(tensor, shards) for tensor in tensors)
        return cls(
            tuple(tensors),
            elements=sum(tensor.elements for tensor in tensors),
            shard=shard,
            gathered=shard * shards,
            largest=max(tensor.elements for tensor in tensors),
        )

    @property
    def is_held(self) -> bool:
        """Whether whole gradients wait for the last micro-step."""
        return self.mode == "replicated"
