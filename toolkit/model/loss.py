"""Cross-entropy as a sum over valid targets, in fp32 whatever the precision of the model.

The sum, not the mean: one token counts the same in every micro-batch and on every rank, so whoever
knows the number of valid targets in the whole global batch divides by it, once.
"""

from collections.abc import Callable
from functools import cache
from typing import Any

import torch
import torch.nn.functional as F

IGNORE_INDEX = -100
"""A target of this value is padding and counts for nothing."""

CHUNK_ROWS = 256
"""Tokens whose logits exist at one time in `chunked_cross_entropy_sum`. With 128, a CPU spends more
than the plain loss does on adding up the gradient of `weight` (benchmarks/chunked_loss.py)."""

BLOCK_ROWS = 4096
"""Rows of the gradient of `weight` that are computed in bf16 and added to the fp32 sum at one time:
few enough to stay in a CPU's cache in between."""


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
    On CUDA the kernels of liger-kernel do the same, if it is installed.

    Args:
        hidden: [..., n_embd].
        weight: [vocab_size, n_embd].
        targets: [...], int64.

    Returns:
        A scalar, fp32 (fp64 for fp64 hidden).
    """
    rows, targets = hidden.flatten(0, -2), targets.flatten()
    if not torch.is_grad_enabled():
        chunks = zip(rows.split(CHUNK_ROWS), targets.split(CHUNK_ROWS), strict=True)
        return torch.stack([cross_entropy_sum(r @ weight.T, t) for r, t in chunks]).sum()
    if rows.is_cuda and (fused := _liger_loss()) is not None:
        return fused(weight, rows, targets)
    loss: torch.Tensor = _ChunkedCrossEntropySum.apply(rows, weight, targets)
    return loss


@cache
def _liger_loss() -> Callable[..., torch.Tensor] | None:
    """Return liger-kernel's fused head and loss, or None where it is not installed."""
    try:
        from liger_kernel.transformers import LigerFusedLinearCrossEntropyLoss
    except ImportError:
        return None
    return LigerFusedLinearCrossEntropyLoss(
        ignore_index=IGNORE_INDEX, reduction="sum", accum_dtype=torch.float32
    )


class _ChunkedCrossEntropySum(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, hidden: torch.Tensor, weight: torch.Tensor, targets: torch.Tensor
    ) -> torch.Tensor:
        compute = _compute_dtype(hidden)
        accumulate = torch.promote_types(compute, torch.float32)
        projection = weight.to(compute)
        # Sums of many chunks, which fp32 would round one after another.
        loss = torch.zeros((), dtype=torch.float64, device=hidden.device)
        grad_hidden = torch.empty_like(hidden)
        grad_weight = torch.zeros_like(weight, dtype=accumulate)
        chunks = zip(
            hidden.split(CHUNK_ROWS),
            targets.unsqueeze(1).split(CHUNK_ROWS),
            grad_hidden.split(CHUNK_ROWS),
            strict=True,
        )
        for rows, row_targets, grad_rows in chunks:
            loss += _add_chunk(
                rows.to(compute),
                projection,
                row_targets,
                grad_rows=grad_rows,
                grad_weight=grad_weight,
            )
        ctx.save_for_backward(grad_hidden, grad_weight.to(weight.dtype))
        return loss.to(accumulate)

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


def _add_chunk(
    rows: torch.Tensor,
    projection: torch.Tensor,
    targets: torch.Tensor,
    *,
    grad_rows: torch.Tensor,
    grad_weight: torch.Tensor,
) -> torch.Tensor:
    """Return the loss sum of some rows; write their gradient and add to the weight's."""
    valid = targets != IGNORE_INDEX
    losses, grad_logits = _losses_and_gradient(
        (rows @ projection.T).to(grad_weight.dtype), targets.clamp_min(0)
    )
    grad_logits = grad_logits.to(rows.dtype)
    # Rows are masked where they are n_embd wide, not vocab_size.
    grad_rows.copy_((grad_logits @ projection) * valid)
    _add_product(grad_weight, grad_logits.T, rows * valid)
    return (losses * valid).sum()


def _losses_and_gradient(
    logits: torch.Tensor, targets: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """-log p(target) and d/d(logits) = softmax(logits) - onehot(target), for targets [rows, 1]."""
    log_p = logits.log_softmax(dim=-1)
    losses = -log_p.gather(1, targets)
    gradient = log_p.exp_()
    gradient.scatter_add_(1, targets, gradient.new_full((), -1.0).expand_as(targets))
    return losses, gradient


def _add_product(total: torch.Tensor, left: torch.Tensor, right: torch.Tensor) -> None:
    """Add left @ right to a total of the same or a wider dtype."""
    if total.dtype == left.dtype:
        total.addmm_(left, right)
        return
    for block, rows in zip(total.split(BLOCK_ROWS), left.split(BLOCK_ROWS), strict=True):
        block += rows @ right
