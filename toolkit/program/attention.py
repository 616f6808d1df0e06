"""What attention keeps for its backward pass, and what it works with.

Flash keeps its output and 4 B h T bytes of log-sum-exp. Plain products (`math`) compute in fp32
whatever the inputs: they keep fp32 copies of query, key and value, the weights, and under dropout
their mask and the dropped weights too, each 4 B h T^2.
"""

from toolkit.program.settings import StepSettings


def products(settings: StepSettings) -> int:
    """Elements of all heads' [T, T] weights."""
    return settings.sizes.n_head * settings.micro_batch_size * settings.seq_len**2


def kept_bytes(settings: StepSettings) -> int:
    """Bytes kept beyond query, key and value."""
    rows = settings.micro_batch_size * settings.seq_len
    output = settings.width * rows * settings.sizes.n_embd
    if settings.attention == "flash":
        return output + 4 * settings.sizes.n_head * rows
    weights = 4 * products(settings) * (3 if settings.dropout else 1)
    # The product of query, key and value is not kept beside the copies.
    copies = (12 - 3 * settings.width) * rows * settings.sizes.n_embd
    return output + copies + weights


def forward_bytes(settings: StepSettings) -> int:
    """Bytes held for a moment in the forward pass: another set of weights, and a mask of bytes."""
    if settings.attention == "flash":
        return 0
    return 5 * products(settings) + kept_bytes(settings)


def backward_bytes(settings: StepSettings) -> int:
    """Bytes held for a moment in the backward pass: two gradients of the weights, one of values."""
    if settings.attention == "flash":
        return 0
    rows = settings.micro_batch_size * settings.seq_len
    return 8 * products(settings) + 4 * rows * settings.sizes.n_embd
