"""Loss and gradient norm with GPT-2's whole vocabulary, at every step, in every engine.

Tensors as large as a real run's are what a sum of fp32 squares goes wrong on. The quick suite runs
one case of each strategy (`test_equivalence`); here are all modes, world sizes and optimizers.
"""

from functools import cache
from typing import Any

import pytest
import torch

from toolkit.engines.strategies import ACCUMULATIONS, STRATEGIES, SUPPORT, Strategy
from toolkit.model.sizes import PADDED_VOCAB_SIZE, ModelSizes
from toolkit.verify.cases import Case
from toolkit.verify.compare import compare
from toolkit.verify.reference import Trajectory, reference_trajectory
from toolkit.verify.run import not_run, plan_launches, run_cases
from toolkit.verify.verdict import Launch, reference_of

pytestmark = [pytest.mark.distributed, pytest.mark.long, pytest.mark.timeout(900)]

SIZES = ModelSizes(n_layer=2, n_head=2, n_embd=64, vocab_size=PADDED_VOCAB_SIZE, block_size=16)
STEPS = 5
RELATIVE = 1e-6
CLIP = 1.1
"""Clips the first steps and not the last ones, under both optimizers."""

UPDATES: list[dict[str, Any]] = [
    {"optimizer": optimizer, "lr": lr, "grad_clip": clip}
    for optimizer, lr in (("adamw", 3e-3), ("sgd", None))
    for clip in (0.0, CLIP)
]
LAUNCHES = [
    (launch.strategy, launch.world_size)
    for launch in plan_launches(STRATEGIES, [1, 2, 4])
    if not_run(launch) is None
]


@cache
def exact(case: Case) -> Trajectory:
    return reference_trajectory(case, SIZES, dtype=torch.float64)


def relative(found: list[float], right: list[float]) -> float:
    assert len(found) == len(right) == STEPS
    return max(abs(a / b - 1) for a, b in zip(found, right, strict=True))


@pytest.mark.parametrize(("strategy", "world_size"), LAUNCHES)
def test_loss_and_norm_of_every_step_are_those_of_fp64(strategy: Strategy, world_size: int) -> None:
    cases = [
        Case(accumulation=mode, grad_accum_steps=4, steps=STEPS, **update)
        for mode in ACCUMULATIONS
        if SUPPORT[strategy][mode].possible
        for update in UPDATES
    ]
    outcomes, _ = run_cases(Launch(strategy, world_size), cases, SIZES, timeout_s=800)
    for case, outcome in zip(cases, outcomes, strict=True):
        found, right = outcome.trajectory, exact(reference_of(case))
        assert relative(found.losses, right.losses) < RELATIVE, case
        assert relative(found.grad_norms, right.grad_norms) < RELATIVE, case
        assert compare(found, right).own_norm_rel < RELATIVE, case
        if case.grad_clip:
            assert min(right.grad_norms) < CLIP < max(right.grad_norms)


@pytest.mark.parametrize("strategy", [s for s in STRATEGIES if s != "hsdp"])
def test_in_bf16_the_norm_is_that_of_the_gradient_there(strategy: Strategy) -> None:
    """The gradient is not fp64's, but its norm is as exact as in fp32; it decides on clipping."""
    cases = [
        Case(accumulation=mode, grad_accum_steps=4, steps=3, precision="bf16", grad_clip=CLIP)
        for mode in ACCUMULATIONS
        if SUPPORT[strategy][mode].possible
    ]
    world_size = 1 if strategy == "single" else 2
    outcomes, _ = run_cases(Launch(strategy, world_size), cases, SIZES, timeout_s=800)
    for case, outcome in zip(cases, outcomes, strict=True):
        right = exact(reference_of(case))
        assert compare(outcome.trajectory, right).own_norm_rel < RELATIVE, case
