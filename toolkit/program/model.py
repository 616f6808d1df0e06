"""Forward and backward of the model: embeddings, blocks, head and loss."""

from toolkit.model.tensors import root_tensors
from toolkit.program.block import BlockWalk
from toolkit.program.compiled_block import CompiledBlockWalk
from toolkit.program.engine import EngineWalk
from toolkit.program.events import Program
from toolkit.program.loss import LossWalk
from toolkit.program.settings import StepSettings


class ModelWalk:
    """One micro-step of the model under an engine."""

    def __init__(self, settings: StepSettings, program: Program, engine: EngineWalk) -> None:
        self.settings = settings
        self.program = program
        self.engine = engine
        self.r = settings.residual_width
        self.N = settings.micro_batch_size * settings.seq_len * settings.sizes.n_embd
        self.positions = self.r * settings.seq_len * settings.sizes.n_embd
        self.wte, self.wpe, *self.last_norm = root_tensors(settings.sizes)
        self.layers = range(settings.sizes.n_layer)
        block_walk = CompiledBlockWalk if settings.compile else BlockWalk
        self.block = block_walk(settings, program, engine)
        self.loss = LossWalk(settings, program)

    def forward(self) -> None:
        """Walk from the embeddings to the loss."""
        keep, free = self.program.alloc, self.program.free
        self.program.at("forward")
        tokens, positions = (
            self.r * self.N,
            self.r * self.settings.seq_len * self.settings.sizes.n_embd,
        )
        self._enter("wte")
        keep("activations", tokens)
        self._leave("wte")
        self._enter("wpe")
        keep("activations", positions)
        self._leave("wpe")
        keep("activations", tokens)
        free("activations", tokens + positions)
        self.block.dropout(self.r)
        for layer in self.layers:
            self.engine.enter("block", layer, backward=False)
            if self.settings.activation_checkpointing:
                self.block.forward_then_forget(layer)
            else:
                self.block.forward(layer)
            self.engine.leave("block", layer, backward=False)
        self._enter("ln_f")
        keep("activations", tokens + self.block.stats)
        self._leave("ln_f")
        self._enter("lm_head")
        self.loss.forward()
        self._leave("lm_head")
        # Autocast's cached copies go with its context, but for weights that autograd holds on to.
        free("activations", self.block.cached_copies)
        self.engine.end_forward()

    def backward(self) -> None:
        """Walk from the loss to the embeddings; every gradient is handed to the engine."""
        keep, free = self.program.alloc, self.program.free
        self.program.at("loss backward")
        self._enter("lm_head", backward=True)
        self.loss.backward()
        self._leave("lm_head", backward=True)
        self.program.at("backward")
        self._enter("ln_f", backward=True)
        keep("activations", self.r * self.N)
        free("activations", 2 * self.r * self.N + self.block.stats)
        self.block.gradients(self.last_norm)
        self._leave("ln_f", backward=True)
        for layer in reversed(self.layers):
            self.engine.enter("block", layer, backward=True)
            if self.settings.activation_checkpointing:
                self.block.recompute(layer)
            self.block.backward(layer)
            self.engine.leave("block", layer, backward=True)
        self.program.at("end of backward")
        self.block.undo_dropout(self.r)
        self._backward_embeddings()
        self.engine.end_backward()

    def _enter(self, module: str, layer: int = -1, *, backward: bool = False) -> None:
        self.engine.enter(module, layer, backward=backward)

    def _leave(self, module: str, layer: int = -1, *, backward: bool = False) -> None:
        self.engine.leave(module, layer, backward=backward)

    def _backward_embeddings(self) -> None:
        """The sum over the batch is the positions' gradient; the token one joins the head's.

        Autograd adds the two in place, unless the head's is a transposed view, as it is where a
        product made it and nothing was cast: then into a third.
        """
        keep, free = self.program.alloc, self.program.free
        positions = self.positions
        keep("activations", positions)
        self._enter("wpe", backward=True)
        keep("gradients", self.engine.gradient_width(self.wpe) * self.wpe.elements)
        free("activations", positions)
        self.engine.gradient(self.wpe)
        self._leave("wpe", backward=True)
        tokens = self.engine.gradient_width(self.wte) * self.wte.elements
        self._enter("wte", backward=True)
        keep("gradients", tokens)
        free("activations", self.r * self.N)
        if not self.settings.autocast and self.settings.loss == "plain":
            keep("gradients", tokens)
            free("gradients", tokens)
        free("gradients", tokens)
        self.engine.gradient(self.wte)
        self._leave("wte", backward=True)
