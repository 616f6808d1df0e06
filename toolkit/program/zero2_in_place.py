"""ZeRO-2 in low precision with a coalesced window: gradients are reduced where they are."""

from collections.abc import Iterator

from toolkit.model.tensors import Tensor
from toolkit.program.zero12 import ReplicatedParametersWalk


class InPlaceWalk(ReplicatedParametersWalk):
    """Stage 2 in fp16 and bf16 with a coalesced window, whose fp32 gradients stay where they are.

    Its bucket, which has the model's dtype, would round them. They are reduced in turn, first all
    matrices: what together has no more than b elements in one flat copy, a larger one by itself and
    without a copy; each in one call. The results are added to the part's fp32 sums, made when the
    first tensor of the part is reduced. The fullest rank is the first: what lies in its part comes
    first, and stays until all is reduced.
    """

    def gradient(self, tensor: Tensor) -> None:
        """Keep it for the whole window."""
        self._wait(tensor)

    def end_backward(self) -> None:
        """Reduce the whole window, then let go of the part's own gradients."""
        if not self.is_last:
            return
        own = 0
        reduced = {True: 0, False: 0}
        for bucket in self._buckets():
            elements = sum(tensor.elements for tensor in bucket)
            flat = 4 * elements if len(bucket) > 1 else 0
            self.program.alloc("communication", flat)
            self.communicate("all_reduce", elements, 4, blocks=True)
            for kind in {tensor.is_matrix for tensor in bucket}:
                if not reduced[kind]:
                    self.program.alloc("gradients", 4 * self._part(is_matrix=kind))
            self.program.free("communication", flat)
            for tensor in bucket:
                if reduced[tensor.is_matrix] < self._part(is_matrix=tensor.is_matrix):
                    own += 4 * tensor.elements
                else:
                    self.program.free("gradients", 4 * tensor.elements)
                reduced[tensor.is_matrix] += tensor.elements
        self.program.free("gradients", own)

    def _buckets(self) -> Iterator[list[Tensor]]:
        """Yield what is reduced together."""
        bucket: list[Tensor] = []
        filled = 0
        for tensor in self.by_group:
            if bucket and filled + tensor.elements > self.bucket:
                yield bucket
                bucket, filled = [], 0
            bucket.append(tensor)
            filled += tensor.elements
        yield bucket

    def step(self) -> None:
        """The sums are one flat tensor for each group already."""
        self.program.at("optimizer step")
        self._update_owned()
        for kind in (True, False):
            self.program.free("gradients", 4 * self._part(is_matrix=kind))
        self._gather_updated()
