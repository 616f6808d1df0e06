"""DeepSpeed ZeRO stages 1, 2 and 3, as DeepSpeed 0.19.8 allocates them.

With P parameters, W ranks and c bytes per element computed with, between two steps lie

    stages 1 and 2   c P working copy, 4 P / W masters, 8 P / W moments
    stage 3          c P / W working slices, 4 P / W masters, 8 P / W moments, 4 P / W of
                     accumulated gradients, and an fp32 bucket to reduce with

In bf16 stage 1 has an optimizer of its own, which keeps fp32 sums of all gradients, 4 P, for good;
the low-precision ones are added to them and stay until the update. Stage 2 owns only its part of
the sums, 4 P / W. `coalesce_grad_reduction` (replicated) leaves the window's gradients on the
parameters, 4 P in every precision: `toolkit.engines.zero` gives them `grad_dtype` fp32, so that
autograd casts each before adding it up, the head's as soon as the head is through. Buckets come
from `toolkit.engines.deepspeed_config`. With `offload_optimizer` masters, moments and the sums of
gradients are host memory.

Stages 1 and 2 wait for every reduction, since `overlap_comm` is off, and for the gathers after the
update: one for each of the optimizer's groups, what decays and what does not, each padded to a
multiple of twice the ranks (`nccl_start_alignment_factor`). Both are of all ranks: DeepSpeed
all-reduces whole buckets and keeps its part, whatever its configuration.
"""

from toolkit.engines.deepspeed_config import zero_optimization
from toolkit.model.tensors import Tensor
from toolkit.program.engine import EngineWalk
from toolkit.program.events import Program
from toolkit.program.settings import StepSettings


class ZeroWalk(EngineWalk):
    """What the three stages share: masters and moments of one part, and the update of it."""

    def __init__(self, settings: StepSettings, program: Program) -> None:
        super().__init__(settings, program)
        self.c = settings.width
        # DeepSpeed frees its own, whatever the loop does.
        self.keeps_gradients = False
        self.owned = -(-self.parameters // settings.world_size)
        self.zero = zero_optimization(settings.strategy, settings.sizes)
        self.bucket: int = self.zero["reduce_bucket_size"]
        self.largest = max(tensor.elements for tensor in self.tensors)
        self.replicated = settings.accumulation == "replicated"
        self.coalesces = self.replicated and settings.strategy != "zero1"
        self.by_group = sorted(self.tensors, key=lambda tensor: not tensor.is_matrix)
        matrices = sum(tensor.elements for tensor in self.tensors if tensor.is_matrix)
        self.group = {True: matrices, False: self.parameters - matrices}

    def start(self) -> None:
        """Allocate masters and moments of this rank's part."""
        if not self.settings.offload_optimizer:
            self.program.alloc("parameters", 4 * self.owned)
            self.program.alloc("optimizer", self.moments(self.owned))

    def leave(self, module: str, layer: int, *, backward: bool) -> None:
        """The head's gradient waits for the embedding's; it too has been cast."""
        if module == "lm_head" and backward and self.coalesces and self.c == 2:
            self.program.alloc("gradients", 4 * self.largest)
            self.program.free("gradients", 2 * self.largest)

    def _wait(self, tensor: Tensor) -> None:
        """Keep a gradient for the window's reduction, in fp32, or add it to what waits."""
        elements = tensor.elements
        if self.c == 2 and self.coalesces and tensor.module == "wte":
            # The embedding's gradient and its cast; the head's, which it joins, is fp32 already.
            self.program.touch("gradients", (2 + 4) * elements)
        elif self.c == 2:
            self.program.alloc("gradients", 4 * elements)
            self.program.free("gradients", 2 * elements)
        if self.micro_step:
            self.program.free("gradients", 4 * elements)

    def _update_owned(self) -> None:
        """The norm is taken in fp64, tensor by tensor; the update is of two flat tensors."""
        self.program.touch("other", 8 * min(self.largest, self.owned))
        for is_matrix in (True, False):
            self._update_part(self._part(is_matrix=is_matrix), is_matrix=is_matrix)

    def _update_part(self, elements: int, *, is_matrix: bool) -> None:
        self.update([Tensor("", -1, elements, 1, is_matrix)], [elements])

    def _part(self, *, is_matrix: bool) -> int:
        """Elements of this rank's part of the matrices or of the vectors."""
        return -(-self.group[is_matrix] // self.settings.world_size)
