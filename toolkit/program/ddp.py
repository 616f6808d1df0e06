"""DistributedDataParallel: everything replicated, gradients in buckets that are never freed."""

from toolkit.engines.reduction import sum_width
from toolkit.model.tensors import Tensor
from toolkit.program.engine import EngineWalk
from toolkit.program.events import Collective, Part, Program
from toolkit.program.settings import StepSettings

MIB = 1024**2
BUCKETS_BYTES = (1 * MIB, 25 * MIB)
"""Of DDP's first bucket and of all others: `dist._DEFAULT_FIRST_BUCKET_BYTES`, `bucket_cap_mb`."""


class DdpWalk(EngineWalk):
    """DDP's buckets hold 4 bytes a parameter from construction on.

    With `gradient_as_bucket_view` the gradients are those buckets, before the first micro-step as
    after the last, where they are cleared in place, as the loop does it. Where they are freed
    instead (`set_to_none`), a micro-step that does not reduce makes gradients of its own, 4 bytes a
    parameter more, which the reducing one moves into the buckets. Without it the gradients lie
    beside the buckets in any case.

    After its first reduction DDP makes new buckets, in the order in which gradients came, when the
    next reduction is prepared; where gradients are views of the old ones, these live until that
    backward pass has moved them. Where a step reduces once, that is in the second step, beside the
    optimizer's state: 4 bytes a parameter more than in any later step, and so the peak of the run.

    With `reduce: bf16` a bucket's bf16 copy is what is reduced, and lives until the pass is over.
    A bucket is all-reduced behind the backward pass once its last gradient is there, over gloo too;
    all are over when the pass is.
    """

    def __init__(self, settings: StepSettings, program: Program) -> None:
        super().__init__(settings, program)
        self.views = settings.gradient_as_bucket_view
        reduces_once = settings.accumulation == "replicated" or settings.grad_accum_steps == 1
        self.rebuilds_in_second_step = reduces_once and self.views
        self.has_own_gradients = False
        self.limits: list[int] = []
        self.in_bucket = 0
        self.compressed = 0
        self.under_way: list[Collective] = []

    def start(self) -> None:
        """Allocate the buckets too, and the ones they replace."""
        self.program.alloc("parameters", 4 * self.parameters)
        self.program.alloc("optimizer", self.moments(self.parameters))
        self.program.alloc(self._bucket_part, 4 * self.parameters)
        if self.keeps_gradients and not self.views:
            self.program.alloc("gradients", 4 * self.parameters)
        if self.rebuilds_in_second_step:
            self.program.alloc("communication", 4 * self.parameters)

    @property
    def _bucket_part(self) -> Part:
        return "gradients" if self.views else "communication"

    @property
    def _reduces(self) -> bool:
        return self.is_last or self.settings.accumulation != "replicated"

    def begin_micro_step(self, micro_step: int, *, is_last: bool) -> None:
        """Begin with the first bucket."""
        super().begin_micro_step(micro_step, is_last=is_last)
        self.limits = list(BUCKETS_BYTES)

    def gradient(self, tensor: Tensor) -> None:
        """Add autograd's gradient to what is there, or keep it; views move into the buckets."""
        size = self.gradient_width(tensor) * tensor.elements
        if self.keeps_gradients or self.micro_step or (self.views and self._reduces):
            self.program.free("gradients", size)
        if self.views and self.has_own_gradients and self._reduces:
            self.program.free("gradients", size)
        if self._reduces:
            self._fill_bucket(tensor.elements)

    def _fill_bucket(self, elements: int) -> None:
        self.in_bucket += elements
        if 4 * self.in_bucket >= self.limits[0]:
            self._reduce_bucket()
            self.limits = self.limits[-1:]

    def _reduce_bucket(self) -> None:
        width = sum_width(self.settings.reduce)
        copy = width * self.in_bucket if width == 2 else 0
        self.program.alloc("communication", copy)
        self.compressed += copy
        reduction = self.communicate("all_reduce", self.in_bucket, width, blocks=False)
        self.under_way.append(reduction)
        self.in_bucket = 0

    def end_backward(self) -> None:
        """All reductions are over; the replaced buckets are free."""
        if self.in_bucket:
            self._reduce_bucket()
        for reduction in self.under_way:
            self.program.wait(reduction)
        self.under_way = []
        self.program.free("communication", self.compressed)
        self.compressed = 0
        if self.is_last and self.rebuilds_in_second_step:
            self.program.free("communication", 4 * self.parameters)
        self.has_own_gradients = not self.keeps_gradients and not self._reduces

    def step(self) -> None:
        """Gradients stay where they are buckets."""
        self.program.at("optimizer step")
        self.update(self.tensors, [tensor.elements for tensor in self.tensors])
        if not self.keeps_gradients and not self.views:
            self.program.free("gradients", 4 * self.parameters)
