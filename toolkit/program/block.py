"""One transformer block, allocation by allocation, in the order of the program.

With N = B T d elements in one activation, r bytes per element of the residual stream and c per
element of a matrix product (r = 4, c = 2 under autocast; r = c where the whole module has one
precision), autograd keeps for each block

    r N   its input            for LayerNorm            4 B T 2   mean and 1/std, twice, fp32
    c N   LayerNorm's output   for query, key, value    3 c N     query, key, value
    c N   attention's output   for the projection       4 B h T   its log-sum-exp, fp32
    r N   the second residual  for LayerNorm            c N       LayerNorm's output
  4 c N   MLP's inner layer    for GELU               4 c N       GELU's output

which is 36 N + 4 B h T + 16 B T bytes for r = 4, c = 2, and 32 N + ... for r = c = 2. Autocast adds
a copy of every weight, 12 d^2 c bytes a block, which autograd keeps until that weight's gradient
is there, and one of every bias, which autocast keeps until the forward pass is over. With fp32 all
is 64 N. What is freed on the way is walked too: it decides the peak where little is kept.
"""

from toolkit.model.tensors import Tensor, block_tensors
from toolkit.program import attention
from toolkit.program.engine import EngineWalk
from toolkit.program.events import Program
from toolkit.program.settings import StepSettings
from toolkit.program.work import attention_work, linear_work, pointwise_work

GENERATOR_STATE = 5_056
"""Bytes of `torch.get_rng_state()`."""


class BlockWalk:
    """One block, forward, forgotten, recomputed and backward.

    Attributes:
        cached_copies: bytes that autocast holds until the forward pass is over, and nobody longer.
    """

    def __init__(self, settings: StepSettings, program: Program, engine: EngineWalk) -> None:
        self.settings = settings
        self.program = program
        self.engine = engine
        self.d = settings.sizes.n_embd
        self.rows = settings.micro_batch_size * settings.seq_len
        self.N = self.rows * self.d
        self.c, self.r = settings.width, settings.residual_width
        self.casts = settings.autocast
        self.stats = 8 * self.rows
        self.blocks = [block_tensors(layer, self.d) for layer in range(settings.sizes.n_layer)]
        self.cached_copies = 0

    def forward(self, layer: int) -> None:
        """Walk from the block's input to its output; what its backward pass needs stays."""
        self._forward_attention(layer)
        self._forward_mlp(layer)
        self._add_residual()

    def forward_then_forget(self, layer: int) -> None:
        """Checkpointing keeps the block's input, which is its caller's, and nothing else.

        Autocast still holds its copies of weights until the forward pass is over. The generator's
        state, kept for the recomputation, is host memory.
        """
        if self.settings.device == "cpu":
            self.program.alloc("activations", GENERATOR_STATE)
        self._forward_attention(layer)
        self._forward_mlp(layer)
        # The second residual goes last: the sum still needs it.
        self.program.free("activations", self._block_kept() - self.r * self.N)
        self._add_residual()
        self.program.free("activations", self.r * self.N)
        if self.casts:
            self.cached_copies += 12 * self.d**2 * self.c

    def recompute(self, layer: int) -> None:
        """Run the block again up to the last tensor that backward needs: not its last product."""
        self._forward_attention(layer)
        self._norm("ln_2", layer)
        self._linear("mlp.c_fc", layer, 1, 4, cast=True)
        self._gelu()
        if self.settings.device == "cpu":
            self.program.free("activations", GENERATOR_STATE)
        if self.casts:
            self.program.alloc("activations", 4 * self.c * self.d**2)
            # These copies are not in autocast's forward cache any more.
            self.program.free("activations", self.r * self.N + self.c * 8 * self.d)
            self.cached_copies -= self.c * 8 * self.d
        if self.settings.dropout:
            mask = 1 if self.settings.device == "cuda" else self.c
            self.program.alloc("activations", mask * self.N)

    def backward(self, layer: int) -> None:
        """Walk from the gradient of the block's output to that of its input."""
        keep, free = self.program.alloc, self.program.free
        c, N = self.c, self.N
        weights = self.blocks[layer]
        self._cast_down()
        self.undo_dropout(c)
        self._backward_linear(
            "mlp.c_proj", weights[10:12], inner=4, outer=1, frees_output=self.casts
        )
        keep("activations", 4 * c * N)
        self.program.compute(pointwise_work(self.settings, 8, 4, width=c))
        free("activations", 8 * c * N)
        self._backward_linear("mlp.c_fc", weights[8:10], inner=1, outer=4, frees_output=True)
        self._cast_up()
        self._backward_norm("ln_2", weights[6:8])
        self._cast_down()
        self.undo_dropout(c)
        self._backward_linear(
            "attn.c_proj",
            weights[4:6],
            inner=1,
            outer=1,
            frees_output=self.casts,
            keeps_input=True,
        )
        self._backward_attention()
        self._backward_linear("attn.c_attn", weights[2:4], inner=1, outer=3, frees_output=True)
        self._cast_up()
        self._backward_norm("ln_1", weights[0:2])

    def gradients(self, tensors: list[Tensor]) -> None:
        """Allocate gradients and hand each to the engine."""
        for tensor in tensors:
            self.program.alloc("gradients", self.engine.gradient_width(tensor) * tensor.elements)
            self.hand_over(tensor)

    def hand_over(self, tensor: Tensor) -> None:
        """Give a gradient that has been allocated to the engine."""
        self.engine.gradient(tensor)

    def dropout(self, width: int) -> None:
        """A mask is kept: one byte an element on a GPU, one of the input's width on a CPU."""
        if self.settings.dropout:
            mask = (1 if self.settings.device == "cuda" else width) * self.N
            self.program.alloc("activations", mask)
            self.program.touch("activations", width * self.N)

    def undo_dropout(self, width: int) -> None:
        """Free the mask once the gradient has been multiplied by it."""
        if self.settings.dropout:
            mask = (1 if self.settings.device == "cuda" else width) * self.N
            self.program.touch("activations", width * self.N)
            self.program.free("activations", mask)

    def _linear(self, module: str, layer: int, inputs: int, outputs: int, *, cast: bool) -> None:
        """Inputs and outputs in multiples of d; `cast`: the input comes in fp32."""
        self.engine.enter(module, layer, backward=False)
        if self.casts:
            weight, bias = self.c * inputs * outputs * self.d**2, self.c * outputs * self.d
            self.program.alloc("activations", weight + bias)
            self.cached_copies += bias
            if cast:
                self.program.alloc("activations", self.c * inputs * self.N)
        self.program.alloc("activations", self.c * outputs * self.N)
        self.program.compute(linear_work(self.settings, inputs * self.d, outputs * self.d))
        self.engine.leave(module, layer, backward=False)

    def _forward_attention(self, layer: int) -> None:
        normed = self.r * self.N
        self._norm("ln_1", layer)
        self._linear("attn.c_attn", layer, 1, 3, cast=True)
        self.program.touch("activations", attention.forward_bytes(self.settings))
        self.program.compute(attention_work(self.settings))
        self.program.alloc("activations", attention.kept_bytes(self.settings))
        self._linear("attn.c_proj", layer, 1, 1, cast=False)
        self.dropout(self.c)
        if self.casts:
            self.program.free("activations", normed)
        self._add_residual()

    def _norm(self, module: str, layer: int) -> None:
        self.engine.enter(module, layer, backward=False)
        self.program.alloc("activations", self.r * self.N + self.stats)
        self.program.compute(pointwise_work(self.settings, 1, 1, width=self.r))
        self.engine.leave(module, layer, backward=False)

    def _forward_mlp(self, layer: int) -> None:
        """Up to the output of the second product, which only the residual sum still needs."""
        self._norm("ln_2", layer)
        self._linear("mlp.c_fc", layer, 1, 4, cast=True)
        self._gelu()
        self._linear("mlp.c_proj", layer, 4, 1, cast=False)
        self.dropout(self.c)
        if self.casts:
            self.program.free("activations", self.r * self.N)

    def _gelu(self) -> None:
        self.program.alloc("activations", 4 * self.c * self.N)
        self.program.compute(pointwise_work(self.settings, 4, 4, width=self.c))

    def _add_residual(self) -> None:
        """Sum in the residual's precision; the branch's output, cast up, is freed after it."""
        self.program.compute(pointwise_work(self.settings, 2, 1, width=self.r))
        if self.casts:
            self.program.alloc("activations", self.r * self.N)
        self.program.alloc("activations", self.r * self.N)
        self.program.free("activations", (self.c + (self.r if self.casts else 0)) * self.N)

    def _block_kept(self) -> int:
        """Bytes of one block's own activations, without its input and copies of weights."""
        normed = 2 * self.c * self.N
        inner = (3 + 8) * self.c * self.N
        second = self.r * self.N
        kept = second + 2 * self.stats + normed + inner + attention.kept_bytes(self.settings)
        return kept + self.masks

    @property
    def masks(self) -> int:
        """Bytes of the masks of both branches' dropout."""
        if not self.settings.dropout:
            return 0
        return 2 * (1 if self.settings.device == "cuda" else self.c) * self.N

    def _cast_down(self) -> None:
        if self.casts:
            self.program.alloc("activations", self.c * self.N)

    def _cast_up(self) -> None:
        if self.casts:
            self.program.alloc("activations", self.r * self.N)
            self.program.free("activations", self.c * self.N)

    def _backward_linear(
        self,
        module: str,
        weights: list[Tensor],
        *,
        inner: int,
        outer: int,
        frees_output: bool,
        keeps_input: bool = False,
    ) -> None:
        """Gradients of input and weight; `inner` and `outer` are widths in multiples of d."""
        weight, bias = weights
        layer = weight.layer
        c, N = self.c, self.N
        self.engine.enter(module, layer, backward=True)
        self.program.compute(linear_work(self.settings, inner * self.d, outer * self.d).twice())
        self.program.alloc("activations", c * inner * N)
        self.program.alloc("gradients", c * weight.elements)
        if frees_output:
            self.program.free("activations", c * outer * N)
        if not keeps_input:
            self.program.free("activations", c * inner * N)
        if self.casts:
            self.program.free("activations", c * weight.elements)
            self.program.alloc("gradients", 4 * weight.elements)
            self.program.free("gradients", c * weight.elements)
        self.hand_over(weight)
        self.gradients([bias])
        self.engine.leave(module, layer, backward=True)

    def _backward_norm(self, module: str, tensors: list[Tensor]) -> None:
        """The gradient of the skipped branch is added in place; output gradient and input go."""
        layer = tensors[0].layer
        self.engine.enter(module, layer, backward=True)
        self.program.compute(pointwise_work(self.settings, 3, 1, width=self.r))
        self.program.alloc("activations", self.r * self.N)
        self.program.free("activations", 3 * self.r * self.N + self.stats)
        self.gradients(tensors)
        self.engine.leave(module, layer, backward=True)

    def _backward_attention(self) -> None:
        keep, free = self.program.alloc, self.program.free
        c, N = self.c, self.N
        self.program.touch("activations", attention.backward_bytes(self.settings))
        self.program.compute(attention_work(self.settings).twice())
        keep("activations", 3 * c * N)
        # The gradient of the output, query, key and value, and what attention kept.
        free("activations", (1 + 3) * c * N + attention.kept_bytes(self.settings))
        keep("activations", 3 * c * N)
        free("activations", 3 * c * N)
