"""Cross-entropy as a sum over valid targets, in fp32 whatever the precision of the model.

The sum, not the mean: one token counts the same in every micro-batch and on every rank, so whoever
knows the number of valid targets in the whole global batch divides by it, once.
"""

from typing import Any

import torch
import torch.nn.functional as F

IGNORE_INDEX = -100
"""A target of this value is padding and counts for nothing."""

CHUNK_ROWS = 128
"""Tokens whose logits exist at one time in `chunked_cross_entropy_sum`."""


def cross_entropy_sum(logits: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """Sum of -log p(target) over valid targets.

    Args:
        logits: [..., vocab_size], any floating dtype; computed with in fp32.
        targets: [...], int64, `IGNORE_INDEX` where there is nothing to predict.

    Returns:
        A scalar, fp32 (fp64 for fp64 logits).
    """
    logits = logits if logits.dtype == torch.float64 else logits.float()
    return F.cross_entropy(
        logits.flatten(0, -2), targets.flatten(), ignore_index=IGNORE_INDEX, reduction="sum"
    )


def chunked_cross_entropy_sum(
    hidden: torch.Tensor, weight: torch.Tensor, targets: torch.Tensor
) -> torch.Tensor:
    """`cross_entropy_sum(hidden @ weight.T, targets)` without ever holding all the logits.

    Both gradients are computed in the forward pass, chunk by chunk, as softmax(z) - onehot(y) is
    known there; the backward pass only scales them. Peak memory for the loss falls from
    tokens x vocab_size to `CHUNK_ROWS` x vocab_size, plus one gradient of the size of `weight`.

    Args:
        hidden: [..., n_embd].
        weight: [vocab_size, n_embd].
        targets: [...], int64.

    Returns:
        A scalar, fp32 (fp64 for fp64 hidden).
    """
    loss: torch.Tensor = _ChunkedCrossEntropySum.apply(
        hidden.flatten(0, -2), weight, targets.flatten()
    )
    return loss


class _ChunkedCrossEntropySum(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, hidden: torch.Tensor, weight: torch.Tensor, targets: torch.Tensor
    ) -> torch.Tensor:
        compute = _compute_dtype(hidden)
        accumulate = torch.promote_types(compute, torch.float32)
        projection = weight.to(compute)
        loss = torch.zeros((), dtype=accumulate, device=hidden.device)
        grad_hidden = torch.empty_like(hidden)
        grad_weight = torch.zeros_like(weight, dtype=accumulate)
        chunks = zip(
            hidden.split(CHUNK_ROWS),
            targets.split(CHUNK_ROWS),
            grad_hidden.split(CHUNK_ROWS),
            strict=True,
        )
        for rows, row_targets, grad_rows in chunks:
            rows = rows.to(compute)
            logits = (rows @ projection.T).to(accumulate)
            loss += cross_entropy_sum(logits, row_targets)
            grad_logits = _cross_entropy_gradient(logits, row_targets).to(compute)
            grad_rows.copy_(grad_logits @ projection)
            grad_weight += grad_logits.T @ rows
        ctx.save_for_backward(grad_hidden, grad_weight.to(weight.dtype))
        return loss

    @staticmethod
    def backward(ctx: Any, *grad_outputs: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, None]:
        grad_hidden, grad_weight = ctx.saved_tensors
        scale = grad_outputs[0]
        return (
            grad_hidden * scale.to(grad_hidden.dtype),
            grad_weight * scale.to(grad_weight.dtype),
            None,
        )


def _compute_dtype(hidden: torch.Tensor) -> torch.dtype:
    device = hidden.device.type
    if torch.is_autocast_enabled(device):
        return torch.get_autocast_dtype(device)
    return hidden.dtype


def _cross_entropy_gradient(logits: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """d(sum of cross-entropies)/d(logits) = softmax(logits) - onehot(target), 0 where ignored."""
    gradient = logits.softmax(dim=-1)
    valid = targets != IGNORE_INDEX
    gradient[torch.arange(len(targets), device=targets.device), targets.clamp_min(0)] -= 1
    return gradient * valid.unsqueeze(-1)
