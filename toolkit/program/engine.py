"""What an engine does around the model's own walk; one subclass per engine family."""

from toolkit.engines.traffic import EngineKind
from toolkit.model.tensors import Tensor, model_tensors
from toolkit.program.events import Collective, Group, Program
from toolkit.program.settings import StepSettings
from toolkit.program.work import update_work


class EngineWalk:
    """The hooks that the walk of the model calls, in program order.

    The base class is one process alone: fp32 parameters, moments and gradients, nothing sent.

    Attributes:
        tensors: every trainable tensor, the tied head once.
    """

    def __init__(self, settings: StepSettings, program: Program) -> None:
        self.settings = settings
        self.program = program
        self.tensors = model_tensors(settings.sizes)
        self.parameters = settings.sizes.parameter_count
        self.keeps_gradients = not settings.frees_gradients
        self.micro_step = 0
        self.is_last = False

    def start(self) -> None:
        """Allocate what lies between two steps: 4 bytes a parameter, and 8 more of moments."""
        self.program.alloc("parameters", 4 * self.parameters)
        self.program.alloc("optimizer", self.moments(self.parameters))
        if self.keeps_gradients:
            self.program.alloc("gradients", 4 * self.parameters)

    def moments(self, elements: int) -> int:
        """Bytes of AdamW's two fp32 moments; SGD here has no momentum."""
        return 0 if self.settings.optimizer == "sgd" else 8 * elements

    def begin_micro_step(self, micro_step: int, *, is_last: bool) -> None:
        """Called before the forward pass."""
        self.micro_step, self.is_last = micro_step, is_last

    def enter(self, module: str, layer: int, *, backward: bool) -> None:
        """Called before a module computes; `layer` is -1 outside the blocks."""

    def leave(self, module: str, layer: int, *, backward: bool) -> None:
        """Called after a module has computed; in the backward pass its gradients are there."""

    def end_forward(self) -> None:
        """Called once the loss is there."""

    def gradient(self, tensor: Tensor) -> None:
        """A gradient has been allocated; keep it, or add it to the one that is there and free it.

        Autograd's first gradient becomes `.grad`; later ones are added in place.
        """
        if self.micro_step or self.keeps_gradients:
            self.program.free("gradients", self.gradient_width(tensor) * tensor.elements)

    def gradient_width(self, tensor: Tensor) -> int:
        """Bytes per element of what autograd hands over: the width of the parameter."""
        return 4 if self.settings.autocast else self.settings.width

    def end_backward(self) -> None:
        """Called after the last gradient of a micro-step."""

    def communicate(
        self,
        kind: EngineKind,
        elements: int,
        width: int,
        *,
        group: Group = "world",
        blocks: bool,
        after: Collective | None = None,
        ahead: bool = False,
    ) -> Collective:
        """Start a collective of so many elements."""
        collective = Collective(kind, width * elements, width, group, blocks, after, ahead)
        return self.program.communicate(collective)

    def step(self) -> None:
        """Update and clear. The fused AdamW kernel and clipping work in place."""
        self.program.at("optimizer step")
        self.update(self.tensors, [tensor.elements for tensor in self.tensors])
        if not self.keeps_gradients:
            self.program.free("gradients", 4 * self.parameters)

    def update(self, tensors: list[Tensor], elements: list[int]) -> None:
        """Walk the optimizer's own temporaries.

        Matrices and vectors are updated one group after the other. `foreach` AdamW holds the
        denominators of a whole group, 4 bytes an element. SGD adds weight decay into a new tensor:
        one matrix at a time, on a GPU all of them (`foreach` is PyTorch's default there).
        """
        settings = self.settings
        self.program.compute(update_work(settings, sum(elements)))
        matrices = [n for t, n in zip(tensors, elements, strict=True) if t.is_matrix]
        if settings.optimizer == "adamw" and settings.foreach:
            self.program.touch("optimizer", 4 * max(sum(matrices), sum(elements) - sum(matrices)))
        if settings.optimizer == "sgd" and matrices:
            at_once = sum if settings.uses_foreach else max
            self.program.touch("optimizer", 4 * at_once(matrices))
