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
