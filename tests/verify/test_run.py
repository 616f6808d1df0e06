"""Verdicts: a right outcome passes, and each kind of wrong one is named."""

from dataclasses import replace

import pytest
import torch

from toolkit.backends.collectives import Traffic
from toolkit.verify.arm import Outcome
from toolkit.verify.cases import TINY, Case
from toolkit.verify.reference import Trajectory, reference_trajectory
from toolkit.verify.run import Arm, judge, not_run, plan_arms

ARM = Arm("ddp", 2)
CASE = Case(accumulation="replicated", grad_accum_steps=4, steps=3)
NONE = Traffic(0, 0)


@pytest.fixture(scope="module")
def right() -> Outcome:
    """What DDP should do, computed by plain PyTorch in fp32."""
    once = Traffic(1, 4 * TINY.parameter_count)
    return Outcome(
        reference_trajectory(CASE, TINY, dtype=torch.float32),
        {"all_reduce": once, "reduce_scatter": NONE, "all_gather": NONE},
        replicas_differ=0,
    )


def problems(outcome: Outcome) -> str:
    return "; ".join(judge(ARM, CASE, outcome, TINY).problems)


def scaled(trajectory: Trajectory, factor: float) -> Trajectory:
    return replace(trajectory, gradients={k: v * factor for k, v in trajectory.gradients.items()})


def test_a_right_outcome_passes(right: Outcome) -> None:
    assert problems(right) == ""


def test_gradients_averaged_twice_are_named(right: Outcome) -> None:
    wrong = replace(right, trajectory=scaled(right.trajectory, 0.5))
    assert "gradient_max_rel 5.0e-01 is above" in problems(wrong)


def test_an_error_a_hundred_times_rounding_is_named(right: Outcome) -> None:
    wrong = replace(right, trajectory=scaled(right.trajectory, 1 + 1e-4))
    assert "gradient_max_rel" in problems(wrong)


def test_one_nudged_parameter_is_named(right: Outcome) -> None:
    nudged = {k: v.clone() for k, v in right.trajectory.parameters.items()}
    nudged["transformer.h.1.mlp.c_fc.weight"][3, 5] += 1e-3
    wrong = replace(right, trajectory=replace(right.trajectory, parameters=nudged))
    assert "param_max_rel" in problems(wrong)


def test_a_nan_never_passes(right: Outcome) -> None:
    losses = [float("nan"), *right.trajectory.losses[1:]]
    wrong = replace(right, trajectory=replace(right.trajectory, losses=losses))
    assert "loss_max_abs nan" in problems(wrong)


def test_one_reduction_too_many_is_named(right: Outcome) -> None:
    twice = {**right.traffic, "all_reduce": Traffic(2, 8 * TINY.parameter_count)}
    assert "all_reduce 343,040 bytes, not 171,520" in problems(replace(right, traffic=twice))


def test_replicas_that_differ_are_named(right: Outcome) -> None:
    assert "1 parameters differ between ranks" in problems(replace(right, replicas_differ=1))


def test_arms_that_cannot_exist_say_why() -> None:
    reasons = {arm: not_run(arm) for arm in plan_arms(["single", "ddp", "hsdp"], [1, 2, 4])}
    assert reasons[Arm("single", 2)] == "one process is one process"
    assert "need 4 processes" in (reasons[Arm("hsdp", 2)] or "")
    assert reasons[Arm("hsdp", 4)] is reasons[Arm("ddp", 2)] is reasons[Arm("single", 1)] is None


def test_without_sizes_each_strategy_is_as_small_as_it_can_be() -> None:
    assert plan_arms(["single", "fsdp2", "hsdp"], []) == [
        Arm("single", 1),
        Arm("fsdp2", 2),
        Arm("hsdp", 4),
    ]
