"""What a loss weighs the same in one update: every target, or every micro-batch."""

from collections.abc import Sequence
from typing import Any

TOLERANCE = 0.01
"""Relative difference up to which two weights are the same."""


def describe_weighting(losses: Sequence[dict[str, Any] | None]) -> str:
    """Return "by token", "by micro-batch", "alike", "otherwise" or "unknown".

    A mean over n targets that is multiplied by s gives each target the weight s/n and the
    micro-batch s; a sum gives s and s*n. "alike" is what equal numbers of targets come to.

    Args:
        losses: of every rank and micro-step of one update, as `Loss.resolve` returns them.
    """
    pairs = [_weights(loss) for loss in losses if loss]
    if not pairs or len(pairs) < len(losses) or any(pair is None for pair in pairs):
        return "unknown"
    of_token, of_batch = (_are_equal(weights) for weights in zip(*filter(None, pairs), strict=True))
    if of_token and of_batch:
        return "alike"
    return "by token" if of_token else "by micro-batch" if of_batch else "otherwise"


def _weights(loss: dict[str, Any]) -> tuple[float, float] | None:
    scale, targets = loss["scale"], loss["valid"]
    if not targets or loss["kind"] == "unknown":
        return None
    return (scale / targets, scale) if loss["kind"] == "mean" else (scale, scale * targets)


def _are_equal(weights: Sequence[float]) -> bool:
    return max(weights) - min(weights) <= TOLERANCE * max(map(abs, weights))
