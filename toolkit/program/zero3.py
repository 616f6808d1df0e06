"""ZeRO stage 3: parameters in parts, gathered for use."""

from toolkit.model.tensors import Tensor
from toolkit.program.events import Collective, Program
from toolkit.program.settings import StepSettings
from toolkit.program.zero import ZeroWalk
from toolkit.program.zero3_prefetch import Coordinator


class Zero3Walk(ZeroWalk):
    """Stage 3: what is gathered ahead and given back is decided in `zero3_prefetch`."""

    def __init__(self, settings: StepSettings, program: Program) -> None:
        super().__init__(settings, program)
        decided: dict[int, set[int]] = {}
        if settings.grad_accum_steps > 1:
            self._coordinate(Program(), decided).rehearse()
        self.coordinator = self._coordinate(program, decided)
        self.held = 4 if self.replicated else self.c
        self.pending: list[int] = []
        self.scattering: list[Collective] = []

    def _coordinate(self, program: Program, decided: dict[int, set[int]]) -> Coordinator:
        return Coordinator(
            self.settings.sizes,
            program,
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
            self.program.alloc("activations", 5 * self.c * rows * self.settings.sizes.n_embd)
        self.program.alloc("parameters", self.c * self.owned)
        self.coordinator.hold_persistent()
        if not self.settings.offload_optimizer:
            self.program.alloc("gradients", 4 * self.owned)
        self.program.alloc("communication", 4 * self.bucket)

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
        self._collect(tensor.elements)

    def _collect(self, elements: int) -> None:
        """Put a gradient behind those that wait, or stay, after reducing what leaves no room."""
        if self.pending and sum(self.pending) + elements > self.bucket:
            self._reduce()
        self.pending.append(elements)
        if elements <= self.bucket:
            self.program.free("gradients", self.held * elements)

    def _reduce(self) -> None:
        """Scatter a flat copy of what waits, each tensor cut and padded to equal slices."""
        waiting, self.pending = self.pending, []
        elements = sum(waiting)
        if not elements:
            return
        alone = elements > self.bucket
        is_copied = not alone or self.c == 2
        self.program.touch("communication", 4 * elements if is_copied else 0)
        if alone:
            self.program.free("gradients", self.held * elements)
        ranks = self.settings.world_size
        padded = sum(-(-size // ranks) * ranks for size in waiting)
        on_cpu = self.settings.device == "cpu"
        scattering = self.communicate("reduce_scatter", padded, 4, blocks=on_cpu)
        if not on_cpu:
            self.scattering.append(scattering)

    def end_backward(self) -> None:
        """Reduce what is left, or the whole window."""
        if self.replicated and self.is_last:
            for tensor in self.by_group:
                self._collect(tensor.elements)
        self._reduce()
        for scattering in self.scattering:
            self.program.wait(scattering)
        self.scattering = []
        self.coordinator.end_pass()

    def _update_part(self, elements: int, *, is_matrix: bool) -> None:
        """The gradients of matrices or vectors are made one flat tensor first."""
        flat = 0 if self.settings.offload_optimizer else 4 * elements
        self.program.alloc("gradients", flat)
        super()._update_part(elements, is_matrix=is_matrix)
        self.program.free("gradients", flat)

    def step(self) -> None:
        """Update the part, once nothing is gathered any more."""
        self.program.at("optimizer step")
        self.coordinator.partition()
        self._update_owned()
        self.coordinator.gather_persistent()
