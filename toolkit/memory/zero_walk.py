"""DeepSpeed ZeRO stages 1, 2 and 3, as DeepSpeed 0.19.8 allocates them.

With P parameters, W ranks and c bytes per element computed with, between two steps lie

    stages 1 and 2   c P working copy, 4 P / W masters, 8 P / W moments
    stage 3          c P / W working slices, 4 P / W masters, 8 P / W moments, 4 P / W of
                     accumulated gradients, and an fp32 bucket to reduce with

In bf16 stage 1 has an optimizer of its own, which keeps fp32 sums of all gradients, 4 P, for good;
the low-precision ones are added to them and stay until the update. Stage 2 owns only its part of
the sums, 4 P / W. `coalesce_grad_reduction` (replicated) leaves all gradients where autograd put
them: c P in stage 2, fp32 in stage 3. Buckets come from `toolkit.backends.deepspeed_config`.
With `offload_optimizer` masters, moments and the sums of gradients are host memory.
"""

from toolkit.backends.deepspeed_config import BUCKETS_PER_MODEL
from toolkit.memory.engine import EngineWalk
from toolkit.memory.ledger import Ledger
from toolkit.memory.settings import StepSettings
from toolkit.memory.tensors import Tensor, block_tensors


class ZeroWalk(EngineWalk):
    """What the three stages share: masters and moments of one part, and the update of it."""

    def __init__(self, settings: StepSettings, ledger: Ledger) -> None:
        super().__init__(settings, ledger)
        self.c = settings.width
        self.owned = -(-self.parameters // settings.world_size)
        self.bucket = self.parameters // BUCKETS_PER_MODEL
        self.largest = max(tensor.elements for tensor in self.tensors)
        self.replicated = settings.accumulation == "replicated"
        self.on_cpu = settings.device == "cpu"
        self.pending = 0

    def start(self) -> None:
        """Allocate masters and moments of this rank's part."""
        if not self.settings.offload_optimizer:
            self.ledger.add("parameters", 4 * self.owned)
            self.ledger.add("optimizer", self.moments(self.owned))

    def _collect(self, elements: int, width: int, *, copies: int) -> None:
        """Put a gradient into the bucket, reducing and freeing the bucket before it if full.

        Args:
            elements: of the gradient.
            width: bytes per element as autograd made it.
            copies: bytes per element of what one reduction allocates.
        """
        if self.pending + elements > self.bucket:
            self._flush(width, copies=copies)
        self.pending += elements

    def _flush(self, width: int, *, copies: int) -> None:
        self.ledger.touch("communication", copies * self.pending)
        self.ledger.drop("gradients", width * self.pending)
        self.pending = 0

    def _update_owned(self) -> None:
        """The norm is taken in fp64, tensor by tensor."""
        self.ledger.touch("other", 8 * min(self.largest, self.owned))
        ranks = self.settings.world_size
        self.update(self.tensors, [tensor.elements // ranks for tensor in self.tensors])

    def _gather_updated(self) -> None:
        """Gloo gathers through a buffer of its own."""
        if self.on_cpu:
            self.ledger.touch("communication", self.c * self.parameters)


class Zero1Bf16Walk(ZeroWalk):
    """Stage 1 in bf16: DeepSpeed's BF16_Optimizer."""

    def start(self) -> None:
        """Also the working copy and the fp32 sums of all gradients."""
        super().start()
        self.ledger.add("parameters", self.c * self.parameters)
        self.ledger.add("gradients", 4 * self.parameters)

    def end_backward(self) -> None:
        """Add each gradient to its fp32 sum, cast one after another."""
        self.ledger.touch("gradients", 4 * self.largest)

    def step(self) -> None:
        """Reduce all sums in one flat copy (up to DeepSpeed's 5e8 elements), then update."""
        self.ledger.at("optimizer step")
        self.ledger.touch("communication", 4 * min(self.parameters, 500_000_000))
        self._update_owned()
        self._gather_updated()
        self.ledger.drop("gradients", self.c * self.parameters)


class Zero12Walk(ZeroWalk):
    """Stage 2, and stage 1 in fp32 and fp16."""

    def __init__(self, settings: StepSettings, ledger: Ledger) -> None:
        super().__init__(settings, ledger)
        self.keeps_all = self.replicated or settings.strategy == "zero1"
        self.sums = 4 * (self._whole_tensors() if self.c == 4 else self.owned)
        if settings.offload_optimizer:
            self.sums = 0

    def _whole_tensors(self) -> int:
        """Elements of all tensors that lie in a part wholly or partly, where that is most.

        In fp32 a rank keeps the gradients of such tensors whole. Matrices and vectors are two flat
        groups, each cut into equal parts.
        """
        ranks = self.settings.world_size
        held = [0] * ranks
        for is_matrix in (True, False):
            group = [t.elements for t in self.tensors if t.is_matrix == is_matrix]
            part = -(-sum(group) // ranks)
            begin = 0
            for elements in group:
                for rank in range(begin // part, (begin + elements - 1) // part + 1):
                    held[rank] += elements
                begin += elements
        return max(held)

    def start(self) -> None:
        """Also the working copy."""
        super().start()
        self.ledger.add("parameters", self.c * self.parameters)

    def gradient(self, tensor: Tensor) -> None:
        """Keep it for the whole window, or reduce it with its bucket."""
        if self.keeps_all:
            super().gradient(tensor)
            return
        if tensor.elements > self.bucket:
            self.ledger.touch("communication", 4 * tensor.elements if self.c == 2 else 0)
            self.ledger.drop("gradients", self.c * tensor.elements)
            return
        self._collect(tensor.elements, self.c, copies=self._copies)

    @property
    def _copies(self) -> int:
        """A flat copy of the bucket, and in low precision one in fp32 beside it."""
        return self.c + (4 if self.c == 2 else 0)

    def enter(self, module: str, layer: int, *, backward: bool) -> None:
        """The first gradient makes the buffer that a bucket is collected in.

        Stage 2 frees it with each backward pass, stage 1 with the window's last.
        """
        first_gradient = module == "ln_f" and backward
        stage_1 = self.settings.strategy == "zero1"
        if first_gradient and (not self.keeps_all or (stage_1 and self.micro_step == 0)):
            self.ledger.add("communication", self.c * self.bucket)

    def end_backward(self) -> None:
        """Reduce the rest; the first reduction of a window makes the sums."""
        if not self.keeps_all:
            self._flush(self.c, copies=self._copies)
            if self.micro_step == 0:
                self.ledger.add("gradients", self.sums)
            self.ledger.drop("communication", self.c * self.bucket)
        elif self.is_last:
            self._reduce_window()

    def _reduce_window(self) -> None:
        """Reduce all gradients of the window, the largest alone, in fp32."""
        if self.settings.strategy != "zero1":
            self.ledger.add("communication", self.c * self.bucket)
        self.ledger.add("gradients", self.sums)
        if self.c == 2:
            self.ledger.touch("communication", 4 * self.largest)
        self.ledger.touch("communication", self._copies * min(self.bucket, self.parameters))
        self.ledger.drop("gradients", self.c * self.parameters)
        self.ledger.drop("communication", self.c * self.bucket)

    def step(self) -> None:
        """In fp32 the part's gradients are made one flat tensor first."""
        self.ledger.at("optimizer step")
        self._update_owned()
        if self.c == 4:
            self.ledger.touch("gradients", 4 * self.owned)
        self.ledger.drop("gradients", self.sums)
        self._gather_updated()


class Zero3Walk(ZeroWalk):
    """Stage 3: matrices are gathered for each use; vectors are too small to be (`persistent`).

    The configuration's reuse distance and prefetch of one block, and at most two blocks live, come
    to this: while a block computes the next one is gathered, and around the loss lie the token
    embedding, which the head's two passes share, and the last block, for its backward pass.
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
            if self.c == 2:
                self.ledger.add("gradients", 4 * tensor.elements)
                self.ledger.drop("gradients", 2 * tensor.elements)
            if self.micro_step:
                self.ledger.drop("gradients", 4 * tensor.elements)
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


def build_zero_walk(settings: StepSettings, ledger: Ledger) -> ZeroWalk:
    """Return the walk of a stage."""
    if settings.strategy == "zero3":
        return Zero3Walk(settings, ledger)
    if settings.strategy == "zero1" and settings.precision == "bf16":
        return Zero1Bf16Walk(settings, ledger)
    return Zero12Walk(settings, ledger)
