"""A block under torch.compile: what it keeps lies between two bounds.

AOTAutograd cuts forward from backward where the least is kept, but never computes a product, an
attention or a reduction again (`min_cut_rematerialization_partition` in
`torch/_functorch/partitioners.py`). How much it saves by that is up to its cost model, so both ends
are walked. With c, r and N as in `block_walk`:

    upper end   as without a compiler
    lower end   what follows point by point from something that is kept anyway is computed again:
                the outputs of both LayerNorms, 2 c N, and of GELU, 4 c N, what makes the second
                residual wider than the product that went into it, (r - c) N, dropout's masks, of
                attention in plain products all but its output and one [T, T] product for each
                head, and autocast's copies of weights, 12 d^2 c. A block at work holds all that but
                one of the LayerNorms' outputs, c N.

At both ends a block's gradients come out of its backward pass together, not one by one.
"""

from toolkit.model.tensors import Tensor
from toolkit.program import attention
from toolkit.program.block import BlockWalk
from toolkit.program.engine import EngineWalk
from toolkit.program.events import Program
from toolkit.program.settings import StepSettings


class CompiledBlockWalk(BlockWalk):
    """One compiled block, at the end of the range that the settings name."""

    def __init__(self, settings: StepSettings, program: Program, engine: EngineWalk) -> None:
        super().__init__(settings, program, engine)
        self.waiting: list[Tensor] = []
        self.copies = 12 * self.d**2 * self.c if self.casts else 0
        self.spare = self.copies + self._pointwise if settings.least_kept else 0

    @property
    def _pointwise(self) -> int:
        """Bytes of one block's activations that follow point by point from others."""
        spared = (6 * self.c + self.r - self.c) * self.N + self.masks
        if self.settings.attention == "math":
            least = self.c * (self.N + attention.products(self.settings))
            spared += attention.kept_bytes(self.settings) - least
        return spared

    def forward(self, layer: int) -> None:
        """Keep less."""
        super().forward(layer)
        self._forget_cached()
        self.program.free("activations", self.spare)

    def forward_then_forget(self, layer: int) -> None:
        """What is kept is the input in any case."""
        super().forward_then_forget(layer)
        self._forget_cached()

    def _forget_cached(self) -> None:
        """Autocast's cache is for what runs outside compiled code."""
        if self.settings.least_kept:
            self.program.free("activations", self.cached_copies)
            self.cached_copies = 0

    def backward(self, layer: int) -> None:
        """Compute again what was not kept, and hand all gradients over at the end."""
        if not self.settings.activation_checkpointing:
            self.program.alloc("activations", self.spare)
        normed = self.c * self.N if self.settings.least_kept else 0
        self.program.free("activations", normed)
        super().backward(layer)
        self.program.alloc("activations", normed)
        for tensor in self.waiting:
            self.engine.gradient(tensor)
        self.waiting = []

    def hand_over(self, tensor: Tensor) -> None:
        """Wait for the others of the block; the last norm is in none."""
        if tensor.layer < 0:
            self.engine.gradient(tensor)
        else:
            self.waiting.append(tensor)
