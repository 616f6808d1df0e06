"""The first step of a case as plain PyTorch computes it: one process, no engine, no wrapper.

This file must not know the engines it is the measure of.
"""

import torch

from benchmarks.record import Case
from toolkit.model.gpt2 import GPT2
from toolkit.verify.tolerance import DRAWS, ROUNDOFF

SEED = 1
"""Of the initial weights, which every rank and the reference draw in fp32."""


def first_step(
    case: Case, inputs: torch.Tensor, targets: torch.Tensor, *, dtype: torch.dtype
) -> tuple[float, float]:
    """Return the mean loss over a global batch and the L2 norm of its gradient.

    Args:
        case: of which the model and its precision matter.
        inputs: tokens of the whole global batch, [sequences, seq_len] int64, on the device.
        targets: as `inputs`.
        dtype: of the weights; below fp64 the case's precision is autocast.
    """
    torch.manual_seed(SEED)
    model = GPT2(case.model).to(inputs.device, dtype)
    autocast = dtype != torch.float64 and case.precision != "fp32"
    low = torch.float16 if case.precision == "fp16" else torch.bfloat16
    loss = 0.0
    # One sequence at a time, so that the batch may be of any size.
    for row in range(len(inputs)):
        with torch.autocast(inputs.device.type, low, enabled=autocast):
            share = model(inputs[row : row + 1], targets[row : row + 1]) / targets.numel()
        share.backward()
        loss += share.item()
    # In fp64 whatever `dtype` is: what a rounded norm is off by may not widen the tolerance.
    gradients = [p.grad for p in model.parameters() if p.grad is not None]
    norms = [torch.linalg.vector_norm(g, dtype=torch.float64) for g in gradients]
    return loss, torch.stack(norms).norm().item()


def reference_step(
    case: Case, inputs: torch.Tensor, targets: torch.Tensor
) -> tuple[float, float, float]:
    """Return exact loss and gradient norm, and how far rounding alone may take a case from them.

    The distance is relative and derived as in `toolkit.verify.tolerance`: a few times the rounding
    error that plain PyTorch makes in the case's precision, and never below a few units of it.
    """
    exact = first_step(case, inputs, targets, dtype=torch.float64)
    rounded = first_step(case, inputs, targets, dtype=torch.float32)
    errors = [abs(found / right - 1) for found, right in zip(rounded, exact, strict=True)]
    return *exact, DRAWS * max(*errors, 4 * ROUNDOFF[case.precision])
