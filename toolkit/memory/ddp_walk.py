"""DistributedDataParallel: everything replicated, gradients in buckets that are never freed."""

from toolkit.memory.engine import EngineWalk
from toolkit.memory.ledger import Ledger, Part
from toolkit.memory.settings import StepSettings
from toolkit.model.tensors import Tensor


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
    """

    def __init__(self, settings: StepSettings, ledger: Ledger) -> None:
        super().__init__(settings, ledger)
        self.views = settings.gradient_as_bucket_view
        reduces_once = settings.accumulation == "replicated" or settings.grad_accum_steps == 1
        self.rebuilds_in_second_step = reduces_once and self.views
        self.has_own_gradients = False

    def start(self) -> None:
        """Allocate the buckets too, and the ones they replace."""
        self.ledger.add("parameters", 4 * self.parameters)
        self.ledger.add("optimizer", self.moments(self.parameters))
        self.ledger.add(self._bucket_part, 4 * self.parameters)
        if self.keeps_gradients and not self.views:
            self.ledger.add("gradients", 4 * self.parameters)
        if self.rebuilds_in_second_step:
            self.ledger.add("communication", 4 * self.parameters)

    @property
    def _bucket_part(self) -> Part:
        return "gradients" if self.views else "communication"

    @property
    def _reduces(self) -> bool:
        return self.is_last or self.settings.accumulation != "replicated"

    def gradient(self, tensor: Tensor) -> None:
        """Add autograd's gradient to what is there, or keep it; views move into the buckets."""
        size = self.gradient_width(tensor) * tensor.elements
        if self.keeps_gradients or self.micro_step or (self.views and self._reduces):
            self.ledger.drop("gradients", size)
        if self.views and self.has_own_gradients and self._reduces:
            self.ledger.drop("gradients", size)

    def end_backward(self) -> None:
        """The replaced buckets are free."""
        if self.is_last and self.rebuilds_in_second_step:
            self.ledger.drop("communication", 4 * self.parameters)
        self.has_own_gradients = not self.keeps_gradients and not self._reduces

    def step(self) -> None:
        """Gradients stay where they are buckets."""
        self.ledger.at("optimizer step")
        self.update(self.tensors, [tensor.elements for tensor in self.tensors])
        if not self.keeps_gradients and not self.views:
            self.ledger.drop("gradients", 4 * self.parameters)
