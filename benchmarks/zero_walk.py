"""The collectives of DeepSpeed's stages in program order, and which of them they wait for. Pure.

As read and counted in deepspeed 0.19.8, under this toolkit's `deepspeed_config`:

    zero1, zero2  wait for every bucket, since `overlap_comm` is off, and for the gathers after the
                  update.
    zero3         gathers a block ahead, over gloo too; reduces behind the backward pass where there
                  are streams. How often it gathers is up to its prefetch (see
                  `toolkit.backends.communication`); here every matrix once in each pass, and the
                  token embedding once more, for the head.
"""

from collections.abc import Iterator, Sequence

from benchmarks.step_walk import GRADIENT_BYTES, Fsdp2Walk, StepWalk
from toolkit.backends.deepspeed_config import bucket_elements
from toolkit.model.tensors import Tensor


class Zero12Walk(StepWalk):
    """Everything is waited for."""

    def backward(self, *, reduces: bool) -> None:
        """Reduce bucket by bucket."""
        for seconds, payload_bytes in self._buckets():
            self.timeline.compute(seconds)
            if reduces:
                self.timeline.block("all_reduce", payload_bytes)

    def _buckets(self) -> Iterator[tuple[float, int]]:
        """Yield each bucket's bytes, and the computation up to where the next does not fit in."""
        limit = bucket_elements(self.arm.model.model_sizes())
        computed_s, held = 0.0, 0
        for seconds, tensor in self.gradients():
            computed_s += seconds
            if held and held + tensor.elements > limit:
                yield computed_s, GRADIENT_BYTES * held
                computed_s, held = 0.0, 0
            held += tensor.elements
        yield computed_s, GRADIENT_BYTES * held

    def after_update(self) -> None:
        """Gather each of the optimizer's groups: what decays, and what does not."""
        for decays in (True, False):
            group = [tensor for tensor in self.tensors if tensor.is_matrix == decays]
            self.timeline.block("all_gather", self.bytes_of(group, self.width))


class Zero3Walk(Fsdp2Walk):
    """Matrices are gathered for each use; biases and norms stay gathered between updates."""

    def forward(self, *, is_first: bool) -> None:
        """Gather the embeddings, blocks one ahead, and the token embedding again for the head."""
        wte, wpe, *_ = self.root
        self.timeline.wait(self.gather([wte, wpe]))
        self.blocks(self.computed.forward_s, gathers=True, reduces=False)
        self.timeline.wait(self.gather([wte]))
        self.timeline.compute(self.head_share * self.computed.forward_s)

    def backward(self, *, reduces: bool) -> None:
        """Gather blocks one ahead and at last the embeddings; reduce behind the computation."""
        wte, wpe, *_ = self.root
        self.timeline.compute(self.head_share * self.computed.backward_s)
        self.blocks(self.computed.backward_s, gathers=True, reduces=reduces)
        self.gather([wte, wpe])
        if reduces:
            self.reduce(self.root)
        self.timeline.wait(self.timeline.network_s)

    def gather(self, tensors: Sequence[Tensor]) -> float:
        """Start gathering matrices, which a handle waits for."""
        matrices = [tensor for tensor in tensors if tensor.is_matrix]
        return self.timeline.start("all_gather", self.bytes_of(matrices, self.width))

    def after_update(self) -> None:
        """Gather biases and norms, one by one."""
        for tensor in self.tensors:
            if not tensor.is_matrix:
                self.timeline.block("all_gather", self.bytes_of([tensor], self.width))
