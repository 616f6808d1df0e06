"""The optimizer, with weight decay on matrices only."""

from typing import Any

import torch
from torch import nn

from toolkit.config import OptimizerConfig


def decay_groups(model: nn.Module, *, weight_decay: float) -> list[dict[str, Any]]:
    """Return two parameter groups: matrices with weight decay, biases and norms without.

    Decided by the number of dimensions, so it must be called before an engine flattens or shards
    the parameters; each group carries the names it was made of.
    """
    named = list(model.named_parameters())
    matrices = [(name, parameter) for name, parameter in named if parameter.dim() >= 2]
    vectors = [(name, parameter) for name, parameter in named if parameter.dim() < 2]
    return [
        _group(matrices, weight_decay=weight_decay),
        _group(vectors, weight_decay=0.0),
    ]


def _group(named: list[tuple[str, nn.Parameter]], *, weight_decay: float) -> dict[str, Any]:
    return {
        "params": [parameter for _, parameter in named],
        "names": [name for name, _ in named],
        "weight_decay": weight_decay,
    }


def build_optimizer(model: nn.Module, config: OptimizerConfig) -> torch.optim.Optimizer:
    """Build AdamW (fused: one kernel per group) or plain SGD on a model not yet wrapped."""
    groups = decay_groups(model, weight_decay=config.weight_decay)
    if config.name == "sgd":
        return torch.optim.SGD(groups, lr=config.lr)
    beta1, beta2 = config.betas
    return torch.optim.AdamW(groups, lr=config.lr, betas=(beta1, beta2), fused=True)


def use_foreach(optimizer: torch.optim.Optimizer) -> None:
    """Let an optimizer that is not wrapped yet update with PyTorch's `foreach` kernels."""
    for group in optimizer.param_groups:
        group |= {"fused": False, "foreach": True}
