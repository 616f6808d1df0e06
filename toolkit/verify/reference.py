"""The update as plain PyTorch computes it: one process, the whole global batch, no wrapper.

This file must not know the engines it is the measure of.
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch.nn.utils import get_total_norm

from toolkit.config import OptimizerConfig
from toolkit.model.gpt2 import GPT2
from toolkit.model.sizes import ModelSizes
from toolkit.verify.cases import Case, global_batch

CLIP_EPSILON = 1e-6
"""Added to the norm that is divided by, as `torch.nn.utils.clip_grad_norm_` does."""


@dataclass(frozen=True)
class Trajectory:
    """What a run of a few steps did.

    Attributes:
        losses: mean over the valid targets of the global batch, per step.
        grad_norms: before clipping, per step.
        gradients: of the first step, before clipping, by parameter name.
        parameters: after the last step, by parameter name.
    """

    losses: list[float]
    grad_norms: list[float]
    gradients: dict[str, torch.Tensor]
    parameters: dict[str, torch.Tensor]


@dataclass(frozen=True)
class ReferenceTrajectory(Trajectory):
    """What the reference did.

    Attributes:
        torch_grad_norms: of the same gradients as `grad_norms`, as PyTorch's own clipping has them.
    """

    torch_grad_norms: list[float]


def reference_trajectory(
    case: Case, sizes: ModelSizes, *, dtype: torch.dtype
) -> ReferenceTrajectory:
    """Train for `case.steps` updates in `dtype`, from weights drawn in fp32.

    A case in bf16 is computed under PyTorch's autocast, with fp32 masters; in fp64 it is exact.
    Squares of gradients are added in fp64 whatever `dtype` is, for PyTorch's own sum of them is
    wrong by more than rounding where tensors are large.
    """
    autocast = dtype != torch.float64 and case.precision == "bf16"
    torch.manual_seed(case.seed)
    model = GPT2(sizes).to(dtype)
    optimizer = _build_optimizer(model, case.optimizer_config())
    losses, grad_norms, torch_grad_norms, gradients = [], [], [], {}
    for step in range(case.steps):
        inputs, targets = global_batch(step, case, sizes)
        with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
            loss = model(inputs, targets) / (targets >= 0).sum()
        loss.backward()
        if step == 0:
            gradients = {name: _gradient(p).clone() for name, p in model.named_parameters()}
        torch_grad_norms.append(get_total_norm(map(_gradient, model.parameters())).item())
        norm = norm_of(_gradient(p) for p in model.parameters())
        if case.grad_clip:
            for parameter in model.parameters():
                _gradient(parameter).mul_(min(1.0, case.grad_clip / (norm + CLIP_EPSILON)))
        for group in optimizer.param_groups:
            group["lr"] = _lr(step, case)
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
        grad_norms.append(norm)
    parameters = {name: p.detach() for name, p in model.named_parameters()}
    return ReferenceTrajectory(losses, grad_norms, gradients, parameters, torch_grad_norms)


def norm_of(tensors: Iterable[torch.Tensor]) -> float:
    """Return the L2 norm of all tensors together; squares are added in fp64."""
    return math.sqrt(sum(tensor.double().square().sum().item() for tensor in tensors))


def _build_optimizer(model: GPT2, config: OptimizerConfig) -> torch.optim.Optimizer:
    """Weight decay on matrices only, written down a second time on purpose."""
    groups = [
        {
            "params": [p for name, p in model.named_parameters() if _is_matrix(name)],
            "weight_decay": config.weight_decay,
        },
        {
            "params": [p for name, p in model.named_parameters() if not _is_matrix(name)],
            "weight_decay": 0.0,
        },
    ]
    if config.name == "sgd":
        return torch.optim.SGD(groups, lr=config.lr)
    beta1, beta2 = config.betas
    return torch.optim.AdamW(groups, lr=config.lr, betas=(beta1, beta2))


def _lr(step: int, case: Case) -> float:
    """Warm-up and cosine decay, written down a second time on purpose."""
    config = case.optimizer_config()
    if step < config.warmup_steps:
        return config.lr / config.warmup_steps * (step + 1)
    done = (step - config.warmup_steps) / (case.steps - config.warmup_steps)
    return config.min_lr + (config.lr - config.min_lr) * math.cos(done * math.pi / 2) ** 2


def _is_matrix(name: str) -> bool:
    return name.endswith(".weight") and ".ln_" not in name


def _gradient(parameter: torch.Tensor) -> torch.Tensor:
    assert parameter.grad is not None
    return parameter.grad
