"""DistributedDataParallel: everything replicated, gradients in buckets that are never freed."""

from toolkit.memory.engine import EngineWalk
from toolkit.memory.tensors import Tensor


class DdpWalk(EngineWalk):
    """DDP's buckets hold 4 bytes a parameter from construction on.

    With `gradient_as_bucket_view` the gradients are those buckets, before the first micro-step as
    after the last, since the loop clears them in place. Without it the buckets come on top.
    """

    def start(self) -> None:
        """Allocate the buckets too."""
        super().start()
        part = "gradients" if self.settings.gradient_as_bucket_view else "communication"
        self.ledger.add(part, 4 * self.parameters)  # type: ignore[arg-type]

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
