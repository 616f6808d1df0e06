"""What the script did to a loss before its backward, read off the autograd graph.

Only the outermost nodes are looked at: factors, then the node that made a scalar of many values.
"""

from dataclasses import dataclass
from typing import Any

import torch

from toolkit.audit.torch_internals import other_factor, reduction, total_weight

_FACTORS = {"DivBackward0": -1, "MulBackward0": 1}
_PASS = {"ToCopyBackward0", "ViewBackward0", "AliasBackward0", "CloneBackward0", "SqueezeBackward0"}
_SINK = "_DDPSinkBackward"
"""DDP's, between a model and its outputs, of which the loss may be any."""
_NLL = {"NllLossBackward0", "NllLoss2DBackward0"}
_REDUCED = _NLL | {"MseLossBackward0", "L1LossBackward0", "SmoothL1LossBackward0"}
_REDUCTIONS = {1: "mean", 2: "sum"}
"""ATen's `Reduction::Mean` and `Reduction::Sum`."""


@dataclass
class Loss:
    """Factors of a loss, as tensors until `resolve`, which may wait for the device.

    Attributes:
        kind: "mean" or "sum" over its values, or "unknown".
        valid: weight of all targets that count, where the loss node keeps it.
    """

    factors: list[tuple[Any, int]]
    kind: str
    valid: Any = None

    def resolve(self) -> dict[str, Any]:
        """Return plain numbers: what the loss was multiplied by, its kind, its valid targets."""
        scale = 1.0
        for factor, power in self.factors:
            scale *= float(factor) ** power
        valid = None if self.valid is None else float(self.valid)
        return {"scale": scale, "kind": self.kind, "valid": valid}


def read_loss(loss: torch.Tensor, gradient: Any = None) -> Loss:
    """Read a loss just before its backward.

    Args:
        loss: what `backward` was called on.
        gradient: `backward`'s own argument; a scalar is one more factor.
    """
    factors: list[tuple[Any, int]] = [] if gradient is None else [(gradient.detach(), 1)]
    if (gradient is not None and gradient.numel() != 1) or loss.numel() != 1:
        return Loss([], "unknown")
    node: Any = loss.grad_fn
    output = loss.output_nr
    while node is not None:
        name = node.name()
        if name in _FACTORS:
            kept = [following for following, _ in node.next_functions if following is not None]
            other = other_factor(node)
            if len(kept) != 1 or other is None or other.numel() != 1:
                return Loss(factors, "unknown")
            factors.append((other.detach(), _FACTORS[name]))
        elif name not in _PASS | {_SINK}:
            return Loss(factors, *_reduction(node, name))
        edges = node.next_functions
        is_sink = name == _SINK and output < len(edges)
        node, output = edges[output] if is_sink else edges[0] if edges[0][0] else edges[-1]
    return Loss(factors, "unknown")


def _reduction(node: Any, name: str) -> tuple[str, Any]:
    if name in ("MeanBackward0", "SumBackward0"):
        return name.removesuffix("Backward0").lower(), None
    if name not in _REDUCED:
        return "unknown", None
    valid = total_weight(node).detach() if name in _NLL else None
    return _REDUCTIONS.get(reduction(node), "unknown"), valid
