"""How far two trajectories of the same run are apart."""

from collections.abc import Iterator
from dataclasses import dataclass

import torch

from toolkit.verify.reference import Trajectory, norm_of


@dataclass(frozen=True)
class Difference:
    """Largest differences over all steps and parameters; `worst` names the parameter.

    Attributes:
        loss_max_abs: in nats.
        grad_norm_max_rel: relative to the reference's norm.
        own_norm_rel: of the first step's norm to the fp64 norm of the gradient found in that step.
        gradient_max_rel: of the first step's gradient, tensor by tensor: |a - b| / |b|.
        param_max_rel: of the parameters after the last step, likewise.
        key_bias_max_abs: of the key biases after the last step.
    """

    loss_max_abs: float
    grad_norm_max_rel: float
    own_norm_rel: float
    gradient_max_rel: float
    param_max_rel: float
    key_bias_max_abs: float
    worst: str


def compare(found: Trajectory, reference: Trajectory) -> Difference:
    """Compare a case with the reference it should equal.

    Key biases are skipped in the relative comparison: adding the same vector to every key shifts
    all scores of a query alike, which softmax ignores, so their gradient is exactly zero and what
    is computed for it is rounding alone; AdamW makes steps of up to the learning rate of that.

    Raises:
        ValueError: the two do not have the same parameters.
    """
    if found.parameters.keys() != reference.parameters.keys():
        different = found.parameters.keys() ^ reference.parameters.keys()
        raise ValueError(f"parameters differ in name: {', '.join(sorted(different))}")
    parameters = dict(_relative(found.parameters, reference.parameters))
    worst = max(parameters, key=lambda name: parameters[name])
    losses = zip(found.losses, reference.losses, strict=True)
    norms = zip(found.grad_norms, reference.grad_norms, strict=True)
    return Difference(
        loss_max_abs=max(abs(a - b) for a, b in losses),
        grad_norm_max_rel=max(abs(a - b) / b for a, b in norms),
        own_norm_rel=abs(found.grad_norms[0] / norm_of(found.gradients.values()) - 1),
        gradient_max_rel=max(d for _, d in _relative(found.gradients, reference.gradients)),
        param_max_rel=parameters[worst],
        key_bias_max_abs=max(
            (
                (found.parameters[name] - value)[_key(value)].abs().max().item()
                for name, value in reference.parameters.items()
                if _has_keys(name)
            ),
            default=0.0,  # another model than GPT-2
        ),
        worst=worst,
    )


def _relative(
    found: dict[str, torch.Tensor], reference: dict[str, torch.Tensor]
) -> Iterator[tuple[str, float]]:
    for name, expected in reference.items():
        value, expected = found[name].to(expected.device).double(), expected.double()
        if _has_keys(name):
            value, expected = _without_key(value), _without_key(expected)
        yield name, ((value - expected).norm() / expected.norm().clamp_min(1e-30)).item()


def _has_keys(name: str) -> bool:
    return name.endswith("attn.c_attn.bias")


def _key(bias: torch.Tensor) -> slice:
    """Query, key and value biases lie one after another."""
    third = len(bias) // 3
    return slice(third, 2 * third)


def _without_key(bias: torch.Tensor) -> torch.Tensor:
    query, _, value = bias.chunk(3)
    return torch.cat([query, value])
