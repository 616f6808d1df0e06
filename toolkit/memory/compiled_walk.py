"""A block under torch.compile: what it keeps lies between two bounds.

AOTAutograd cuts forward from backward where the least is kept, but never computes a product, an
attention or a reduction again (`min_cut_rematerialization_partition` in
`torch/_functorch/partitioners.py`). How much it saves by that is up to its cost model, so both ends
are walked. With c, r and N as in `block_walk`:

    upper end   as without a compiler
    lower end   what follows point by point from something that is kept anyway is computed again:
                the outputs of both LayerNorms, 2 c N, and of GELU, 4 c N, what makes the second
                residual wider than the product that went into it, (r - c) N, dropout's masks, and
                autocast's copies of weights, 12 d^2 c. A block at work holds them all.

At both ends a block's gradients come out of its backward pass together, not one by one.
"""

from toolkit.memory.block_walk import BlockWalk
from toolkit.memory.engine import EngineWalk
from toolkit.memory.ledger import Ledger
from toolkit.memory.settings import StepSettings
from toolkit.model.tensors import Tensor


class CompiledBlockWalk(BlockWalk):
    """One compiled block, at the end of the range that the settings name."""

    def __init__(self, settings: StepSettings, ledger: Ledger, engine: EngineWalk) -> None:
        super().__init__(settings, ledger, engine)
        self.waiting: list[Tensor] = []
        self.copies = 12 * self.d**2 * self.c if self.casts and settings.least_kept else 0
        pointwise = (6 * self.c + self.r - self.c) * self.N + self.masks
        self.spare = pointwise + self.copies if settings.least_kept else 0

    def forward(self, layer: int) -> None:
        """Keep less."""
        super().forward(layer)
        self.ledger.drop("activations", self.spare)

    def forward_then_forget(self, layer: int) -> None:
        """Nothing is cached for a second use of a weight."""
        super().forward_then_forget(layer)
        self.ledger.drop("activations", self.copies)
        self.cached_copies -= self.copies

    def backward(self, layer: int) -> None:
        """Compute again what was not kept, and hand all gradients over at the end."""
        if not self.settings.activation_checkpointing:
            self.ledger.add("activations", self.spare)
        super().backward(layer)
        for tensor in self.waiting:
            self.engine.gradient(tensor)
        self.waiting = []

    def hand_over(self, tensor: Tensor) -> None:
        """Wait for the others of the block; the last norm is in none."""
        if tensor.layer < 0:
            self.engine.gradient(tensor)
        else:
            self.waiting.append(tensor)
