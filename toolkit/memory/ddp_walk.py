"""DistributedDataParallel: everything replicated, gradients in buckets that are never freed."""

from toolkit.memory.engine import EngineWalk
from toolkit.memory.ledger import Part
from toolkit.memory.tensors import Tensor


class DdpWalk(EngineWalk):
    """DDP's buckets hold 4 bytes a parameter from construction on.

    With `gradient_as_bucket_view` the gradients are those buckets, before the first micro-step as
    after the last, since the loop clears them in place. Without it the buckets come on top.

    After its first reduction DDP makes new buckets, in the order in which gradients came, when the
    next reduction is prepared; the old ones live until that backward pass has moved the gradients.
    Where a step reduces once, that is in the second step, beside the optimizer's state: 4 bytes a
    parameter more than in any later step, and so the peak of the run.
    """

    def start(self) -> None:
        """Allocate the buckets too, and the ones they replace."""
        super().start()
        self.ledger.add(self._bucket_part, 4 * self.parameters)
        if self._rebuilds_in_second_step:
            self.ledger.add("communication", 4 * self.parameters)

    @property
    def _bucket_part(self) -> Part:
        return "gradients" if self.settings.gradient_as_bucket_view else "communication"

    @property
    def _rebuilds_in_second_step(self) -> bool:
        settings = self.settings
        return settings.accumulation == "replicated" or settings.grad_accum_steps == 1

    def end_backward(self) -> None:
        """The replaced buckets are free."""
        if self.is_last and self._rebuilds_in_second_step:
            self.ledger.drop("communication", 4 * self.parameters)

    def gradient(self, tensor: Tensor) -> None:
        """Autograd's gradient is added to the bucket's view and freed."""
        if self.settings.gradient_as_bucket_view or self.micro_step:
            self.ledger.drop("gradients", self.gradient_width(tensor) * tensor.elements)

    def step(self) -> None:
        """Gradients stay where they are buckets."""
        self.ledger.at("optimizer step")
        self.update(self.tensors, [tensor.elements for tensor in self.tensors])
        if not self.settings.gradient_as_bucket_view:
            self.ledger.drop("gradients", 4 * self.parameters)
