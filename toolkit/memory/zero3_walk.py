"""ZeRO stage 3: parameters in parts, gathered for use."""

from toolkit.memory.ledger import Ledger
from toolkit.memory.settings import StepSettings
from toolkit.memory.tensors import Tensor, block_tensors
from toolkit.memory.zero_walk import ZeroWalk


class Zero3Walk(ZeroWalk):
    """Stage 3: matrices are gathered for each use; vectors are too small to be (`persistent`).

    The configuration's reuse distance and prefetch of one block, and at most two blocks live, come
    to this: while a block computes the next one is gathered, and around the loss lie the token
    embedding, which the head's two passes share, and the last block, for its backward pass.

    How far DeepSpeed has prefetched then varies from step to step: 7 or 8 d^2 elements more and
    12 d^2 fewer were seen, which is left out: 1 to 2.4 % for a model of a million parameters.
    """

    def __init__(self, settings: StepSettings, ledger: Ledger) -> None:
        super().__init__(settings, ledger)
        block = block_tensors(0, settings.sizes.n_embd)
        self.block = self.c * sum(t.elements for t in block if t.is_matrix)
        self.head = self.c * self.largest
        self.last_layer = settings.sizes.n_layer - 1
        self.persistent = sum(t.elements for t in self.tensors if not t.is_matrix)

    def start(self) -> None:
        """Also the working slices, the persistent vectors, the sums and the bucket."""
        super().start()
        self.ledger.add("parameters", self.c * (self.owned + self.persistent))
        if not self.settings.offload_optimizer:
            self.ledger.add("gradients", 4 * self.owned)
        self.ledger.add("communication", 4 * self.bucket)

    def enter(self, module: str, layer: int, *, backward: bool) -> None:
        """Gather a block as it is needed, and the embedding for the lookup and for the head."""
        if module == "wte" and not backward:
            self._gather(self.head)
        if module == "block" and not (backward and layer == self.last_layer):
            self._gather(self.block)
        if module == "lm_head" and not backward:
            self._gather(self.head)

    def leave(self, module: str, layer: int, *, backward: bool) -> None:
        """Free a block after use, but the last one between its two passes."""
        super().leave(module, layer, backward=backward)
        if module == "wte" and not backward:
            self.ledger.drop("parameters", self.head)
        if module == "block" and (backward or layer != self.last_layer):
            self.ledger.drop("parameters", self.block)
        if module == "lm_head" and backward:
            self.ledger.drop("parameters", self.head)

    def _gather(self, size: int) -> None:
        self.ledger.add("parameters", size)
        if self.on_cpu:
            self.ledger.touch("communication", size)

    def gradient(self, tensor: Tensor) -> None:
        """Keep it in fp32 for the window, or copy it into the bucket."""
        if self.replicated:
            self._wait(tensor)
            return
        if tensor.elements > self.bucket:
            self._reduce_alone(tensor.elements)
            self.ledger.drop("gradients", self.c * tensor.elements)
            return
        if self.pending + tensor.elements > self.bucket:
            self._reduce_bucket()
        self.pending += tensor.elements
        self.ledger.drop("gradients", self.c * tensor.elements)

    def _reduce_bucket(self) -> None:
        """A flat, padded copy of the bucket, and gloo's clone of it."""
        self.ledger.touch("communication", (8 if self.on_cpu else 4) * self.pending)
        self.pending = 0

    def _reduce_alone(self, elements: int) -> None:
        cast = 4 if self.c == 2 else 0
        self.ledger.touch("communication", (cast + (4 if self.on_cpu else 0)) * elements)

    def end_backward(self) -> None:
        """Reduce what is left, or the whole window."""
        if not self.replicated:
            self._reduce_bucket()
        elif self.is_last:
            self._reduce_alone(self.largest)
            self.ledger.drop("gradients", 4 * self.parameters)

    def step(self) -> None:
        """Update the part."""
        self.ledger.at("optimizer step")
        self._update_owned()
