"""ZeRO stage 3: parameters in parts, gathered for use."""

from toolkit.memory.ledger import Ledger
from toolkit.memory.settings import StepSettings
from toolkit.memory.zero3_prefetch import Coordinator
from toolkit.memory.zero_walk import ZeroWalk
from toolkit.model.tensors import Tensor


class Zero3Walk(ZeroWalk):
    """Stage 3: what is gathered ahead and given back is `zero3_prefetch`'s to say."""

    def __init__(self, settings: StepSettings, ledger: Ledger) -> None:
        super().__init__(settings, ledger)
        decided: dict[int, set[int]] = {}
        if settings.grad_accum_steps > 1:
            self._coordinate(Ledger(), decided).rehearse()
        self.coordinator = self._coordinate(ledger, decided)

    def _coordinate(self, ledger: Ledger, decided: dict[int, set[int]]) -> Coordinator:
        return Coordinator(
            self.settings.sizes,
            ledger,
            self.zero,
            shards=self.settings.world_size,
            width=self.c,
            recomputes=self.settings.activation_checkpointing,
            decided=decided,
        )

    def start(self) -> None:
        """Also the working slices, the small parameters, the sums and the bucket.

        Hooks break the graph of a compiled block; its pieces refer to each other, so that the last
        block's queries, keys and values and two tensors of the residual's width, 5 c B T d, stay
        until Python's collector finds them. That is seen in measurement, not derived.
        """
        super().start()
        if self.settings.compile and not self.settings.least_kept:
            rows = self.settings.micro_batch_size * self.settings.seq_len
            self.ledger.add("activations", 5 * self.c * rows * self.settings.sizes.n_embd)
        self.ledger.add("parameters", self.c * self.owned)
        self.coordinator.gather_persistent()
        if not self.settings.offload_optimizer:
            self.ledger.add("gradients", 4 * self.owned)
        self.ledger.add("communication", 4 * self.bucket)

    def begin_micro_step(self, micro_step: int, *, is_last: bool) -> None:
        """Start at the beginning of the record."""
        super().begin_micro_step(micro_step, is_last=is_last)
        self.coordinator.start_pass()

    def enter(self, module: str, layer: int, *, backward: bool) -> None:
        """Gather what the module needs and what comes after it."""
        if module != "block":
            self.coordinator.enter((module, layer, backward))

    def leave(self, module: str, layer: int, *, backward: bool) -> None:
        """Give back what does not come again soon."""
        super().leave(module, layer, backward=backward)
        if module != "block":
            self.coordinator.leave()

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
        """A flat, padded copy of the bucket."""
        self.ledger.touch("communication", 4 * self.pending)
        self.pending = 0

    def _reduce_alone(self, elements: int) -> None:
        self.ledger.touch("communication", 4 * elements if self.c == 2 else 0)

    def end_backward(self) -> None:
        """Reduce what is left, or the whole window."""
        if not self.replicated:
            self._reduce_bucket()
        elif self.is_last:
            self._reduce_alone(self.largest)
            self.ledger.drop("gradients", 4 * self.parameters)
        self.coordinator.end_pass()

    def _update_part(self, elements: int, *, is_matrix: bool) -> None:
        """The gradients of matrices or vectors are made one flat tensor first."""
        flat = 0 if self.settings.offload_optimizer else 4 * elements
        self.ledger.add("gradients", flat)
        super()._update_part(elements, is_matrix=is_matrix)
        self.ledger.drop("gradients", flat)

    def step(self) -> None:
        """Update the part, once nothing is gathered any more."""
        self.ledger.at("optimizer step")
        self.coordinator.partition()
        self._update_owned()
        self.coordinator.gather_persistent()
