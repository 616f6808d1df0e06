"""What the modules compute: floating-point operations, and bytes read and written.

A multiplication and its addition are two operations. With R = B T rows, c bytes per element of a
product and r of the residual stream, for the forward pass:

    linear, i to o      2 R i o            c (R i + R o + i o)    weights are read once
    attention           4 R T d            4 c R d                both products over all T columns;
                                                                   flash never moves the weights
    norm, add, lookup   -                  as read and written, element by element
    loss over V words   -                  8 R V; 14 R V where logits are cast, c = 2

The loss reads the logits and writes their log-softmax in fp32, after a cast where c is 2; backward
the gradient of the picked is written, read with the log-softmax and turned into that of the logits:
16 R V, and 6 R V for a cast.

The backward pass of a product computes the gradients of both of its factors: twice the operations
and twice the bytes. Updating an element takes 12 bytes with SGD (read gradient and parameter, write
it) and 28 with AdamW (also read and write both moments).
"""

from typing import NamedTuple

from toolkit.program.events import Kind
from toolkit.program.settings import StepSettings

UPDATED_BYTES = {"sgd": 12, "adamw": 28}


class Work(NamedTuple):
    """A kind of work, its operations and the bytes that it moves."""

    kind: Kind
    flops: int
    moved: int

    def twice(self) -> "Work":
        """Return the work of the backward pass of a product."""
        return Work(self.kind, 2 * self.flops, 2 * self.moved)


def linear_work(settings: StepSettings, inputs: int, outputs: int) -> Work:
    """Return the forward pass of a linear module of so many inputs and outputs."""
    rows = settings.micro_batch_size * settings.seq_len
    moved = rows * inputs + rows * outputs + inputs * outputs
    return Work("matmul", 2 * rows * inputs * outputs, settings.width * moved)


def attention_work(settings: StepSettings) -> Work:
    """Return the forward pass of attention, between the two linear modules around it."""
    elements = settings.micro_batch_size * settings.seq_len * settings.sizes.n_embd
    return Work("attention", 4 * elements * settings.seq_len, 4 * settings.width * elements)


def pointwise_work(settings: StepSettings, reads: int, writes: int, *, width: int) -> Work:
    """Return what reads and writes so many tensors of the residual's shape."""
    elements = settings.micro_batch_size * settings.seq_len * settings.sizes.n_embd
    return Work("pointwise", 0, width * (reads + writes) * elements)


def loss_work(settings: StepSettings, *, backward: bool) -> Work:
    """Return the cross-entropy of either pass, from logits on and back to them."""
    logits = settings.micro_batch_size * settings.seq_len * settings.sizes.vocab_size
    cast = 6 if settings.width == 2 else 0
    return Work("pointwise", 0, ((16 if backward else 8) + cast) * logits)


def update_work(settings: StepSettings, elements: int) -> Work:
    """Return the optimizer's update of so many elements."""
    return Work("update", 0, UPDATED_BYTES[settings.optimizer] * elements)
