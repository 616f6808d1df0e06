"""The output head and the cross-entropy, plain or in chunks.

Plain, with R = B T rows and V words: c R V logits, 4 R V in fp32 where c is 2, 4 R V log-softmax,
which is all that is kept. Backward holds it, the gradient of the picked log-probabilities and the
gradient of the logits at once: 12 R V bytes, in most runs the peak.

Chunked, the forward pass computes both gradients chunk by chunk (`toolkit.model.loss`): one fp32
gradient of the head, 4 V d, and one chunk's logits and log-softmax of 4 V bytes a row each.
liger-kernel, which takes its place on CUDA where it is installed, has chunks of its own.
"""

from toolkit.program.events import Program
from toolkit.program.settings import StepSettings
from toolkit.program.work import linear_work, loss_work

CHUNK_ROWS, BLOCK_ROWS = 256, 4096
"""As in `toolkit.model.loss`, which imports torch; a test holds the two together."""


class LossWalk:
    """Head and loss of one micro-step."""

    def __init__(self, settings: StepSettings, program: Program) -> None:
        self.settings = settings
        self.program = program
        sizes = settings.sizes
        self.rows = settings.micro_batch_size * settings.seq_len
        self.N = self.rows * sizes.n_embd
        self.V = sizes.vocab_size
        self.head = sizes.vocab_size * sizes.n_embd
        self.c, self.r = settings.width, settings.residual_width
        self.weight = 4 if settings.autocast else self.c

    def forward(self) -> None:
        """Walk from the last norm's output to the scalar; chunks compute both gradients here."""
        work = linear_work(self.settings, self.settings.sizes.n_embd, self.V)
        self.program.compute(work)
        self.program.compute(loss_work(self.settings, backward=False))
        if self.settings.loss == "chunked":
            self.program.compute(loss_work(self.settings, backward=True))
            self.program.compute(work.twice())
            self._forward_chunked()
        else:
            self._forward_plain()

    def backward(self) -> None:
        """Walk back to the gradient of the last norm's output; the head's gradient stays."""
        if self.settings.loss == "chunked":
            self._backward_chunked()
        else:
            work = linear_work(self.settings, self.settings.sizes.n_embd, self.V)
            self.program.compute(loss_work(self.settings, backward=True))
            self.program.compute(work.twice())
            self._backward_plain()

    def _forward_plain(self) -> None:
        keep, free = self.program.alloc, self.program.free
        logits = self.rows * self.V
        if self.settings.autocast:
            keep("activations", self.c * self.head)
            keep("activations", self.c * self.N)
        self.program.at("loss")
        keep("loss", self.c * logits)
        if self.c == 2:
            keep("loss", 4 * logits)
            free("loss", self.c * logits)
        keep("loss", 4 * logits)
        free("loss", 4 * logits)
        if self.settings.autocast:
            free("activations", self.r * self.N)

    def _backward_plain(self) -> None:
        keep, free = self.program.alloc, self.program.free
        logits = self.rows * self.V
        keep("loss", 4 * logits)
        keep("loss", 4 * logits)
        free("loss", 8 * logits)
        if self.c == 2:
            keep("loss", self.c * logits)
            free("loss", 4 * logits)
        keep("gradients", self.c * self.head)
        keep("activations", self.c * self.N)
        free("loss", self.c * logits)
        free("activations", self.c * self.N)
        if self.settings.autocast:
            free("activations", self.c * self.head)
            keep("activations", self.r * self.N)
            free("activations", self.c * self.N)
            keep("gradients", 4 * self.head)
            free("gradients", self.c * self.head)

    def _forward_chunked(self) -> None:
        keep, free = self.program.alloc, self.program.free
        casts = self.settings.autocast
        self.program.at("loss")
        if casts:
            keep("loss", self.c * self.head)
        keep("loss", self.r * self.N)
        keep("loss", 4 * self.head)
        self._walk_chunk()
        if self.weight == 2:
            keep("loss", 2 * self.head)
            free("loss", 4 * self.head)
        if casts:
            free("loss", self.c * self.head)
        # The hidden states are needed no more: their gradient is there.
        free("activations", self.r * self.N)

    def _walk_chunk(self) -> None:
        """First fp32 logits and their log-softmax, which becomes the gradient in place.

        Later, unless it is added up in place, the product of that gradient and the hidden states,
        `BLOCK_ROWS` of its V rows at a time, which a CPU copies to fp32 to add them.
        """
        rows = min(CHUNK_ROWS, self.rows)
        chunk = rows * self.V
        hidden = self.c * rows * self.settings.sizes.n_embd
        inputs = hidden if self.settings.autocast else 0
        self.program.touch("loss", inputs + 8 * chunk)
        if self.c == 2:
            block = min(BLOCK_ROWS, self.V) * self.settings.sizes.n_embd
            width = self.c + (4 if self.settings.device == "cpu" else 0)
            self.program.touch("loss", inputs + hidden + self.c * chunk + width * block)

    def _backward_chunked(self) -> None:
        keep, free = self.program.alloc, self.program.free
        keep("activations", self.r * self.N)
        keep("gradients", self.weight * self.head)
        free("loss", self.r * self.N + self.weight * self.head)
