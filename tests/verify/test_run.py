"""Verdicts: a right outcome passes, and each kind of wrong one is named."""

from dataclasses import replace

import pytest
import torch

from toolkit.engines.traffic import Traffic
from toolkit.model.sizes import PADDED_VOCAB_SIZE
from toolkit.verify import reference
from toolkit.verify.cases import TINY, Case
from toolkit.verify.outcome import Outcome
from toolkit.verify.reference import Trajectory, reference_trajectory
from toolkit.verify.report import build_json
from toolkit.verify.run import Caught, cases_of, controls_of, not_run, plan_launches
from toolkit.verify.tolerance import yardstick
from toolkit.verify.verdict import Launch, judge

LAUNCH = Launch("ddp", 2)
CASE = Case(accumulation="replicated", grad_accum_steps=4, steps=3)
NONE = Traffic(0, 0)


@pytest.fixture(scope="module")
def right() -> Outcome:
    """What DDP should do, computed by plain PyTorch in fp32."""
    once = Traffic(1, 4 * TINY.parameter_count, (2,))
    return Outcome(
        reference_trajectory(CASE, TINY, dtype=torch.float32),
        {"all_reduce": once, "reduce_scatter": NONE, "all_gather": NONE, "other": NONE},
        held_gradient_bytes=4 * TINY.parameter_count,
        held_gradient_dtypes=["torch.float32"],
        replica_groups=1,
        replica_problems=[],
    )


def problems(outcome: Outcome) -> str:
    return "; ".join(judge(LAUNCH, CASE, outcome, TINY).problems)


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


def norms_times(trajectory: Trajectory, factor: float) -> Trajectory:
    return replace(trajectory, grad_norms=[norm * factor for norm in trajectory.grad_norms])


def test_a_norm_off_by_a_ten_thousandth_is_named(right: Outcome) -> None:
    found = problems(replace(right, trajectory=norms_times(right.trajectory, 1 + 1e-4)))
    assert "; grad_norm_max_rel 1.0e-04 is above 1.9e-06" in f"; {found}"
    assert "own_norm_rel 1.0e-04 is above 1.9e-06" in found


def test_in_bf16_a_norm_is_held_to_its_own_gradient_as_in_fp32(right: Outcome) -> None:
    """The gradient is another one than in fp64, its norm is not."""
    case = replace(CASE, precision="bf16")
    did = reference_trajectory(case, TINY, dtype=torch.float32)
    for factor, expected in ((1.0, []), (1 + 1e-4, ["own_norm_rel 1.0e-04 is above 1.9e-06"])):
        outcome = replace(right, trajectory=norms_times(did, factor))
        assert list(judge(LAUNCH, case, outcome, TINY).problems) == expected


def test_pytorchs_own_norm_does_not_widen_the_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    """As large a tensor as an embedding of GPT-2, of which PyTorch's own norm is off by 1e-5."""
    sizes = replace(TINY, n_layer=1, n_embd=64, vocab_size=PADDED_VOCAB_SIZE, block_size=8)
    measure = yardstick(replace(CASE, grad_accum_steps=1), sizes)
    assert measure.limit("grad_norm_max_rel", "fp32") < 4e-6
    monkeypatch.setattr(reference, "get_total_norm", lambda gradients: torch.tensor(1.5))
    other = yardstick(replace(CASE, grad_accum_steps=1), TINY)
    assert other.torch_norm_max_rel > 0.1
    assert other.limit("grad_norm_max_rel", "fp32") < 4e-6


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
    twice = {**right.traffic, "all_reduce": Traffic(2, 8 * TINY.parameter_count, (2,))}
    assert "all_reduce 343,040 bytes, not 171,520" in problems(replace(right, traffic=twice))


def test_the_wrong_number_of_calls_and_the_wrong_group_are_named(right: Outcome) -> None:
    calls = {**right.traffic, "all_reduce": Traffic(99, 4 * TINY.parameter_count, (4,))}
    found = problems(replace(right, traffic=calls))
    assert "all_reduce 99 calls, not 1" in found
    assert "all_reduce in groups of 4 ranks, not 2" in found


def test_collectives_that_nobody_expects_are_named(right: Outcome) -> None:
    more = {**right.traffic, "other": Traffic(1, 4096, (2,))}
    assert "other 4,096 bytes, not 0" in problems(replace(right, traffic=more))


def test_gradients_held_in_another_size_or_dtype_are_named(right: Outcome) -> None:
    half = replace(right, held_gradient_bytes=2 * TINY.parameter_count)
    assert "85760 bytes of gradients held between micro-steps (torch.float32)" in problems(half)
    low = replace(right, held_gradient_dtypes=["torch.bfloat16"])
    assert "gradients are held in torch.bfloat16 alone" in problems(low)


def test_replicas_that_differ_are_named(right: Outcome) -> None:
    assert problems(replace(right, replica_problems=["rank 1 differs"])) == "rank 1 differs"


def test_one_fault_that_nothing_catches_is_a_failure(right: Outcome) -> None:
    good, bad = Caught("divide twice", "ddp", "gradient"), Caught("untied head", "ddp", None)
    verdict = judge(LAUNCH, CASE, right, TINY)
    assert build_json([verdict], [good], {}, TINY, steps=3)["ok"] is True
    report = build_json([verdict], [good, bad], {}, TINY, steps=3)
    assert report["ok"] is False
    assert [control["caught"] for control in report["controls"]] == [True, False]


def test_each_distributed_engine_has_faults_to_catch() -> None:
    assert len(controls_of(Launch("ddp", 2))) == 15
    assert controls_of(Launch("ddp", 1)) == controls_of(Launch("single", 1)) == []


def test_every_mode_runs_with_both_optimizers_and_one_in_all_variants() -> None:
    cases = cases_of(
        Launch("fsdp2", 2),
        accumulations=["replicated", "sharded"],
        grad_accum_steps=[1, 4],
        precisions=["fp32"],
        steps=3,
    )
    assert sum(not case.variant for case in cases) == 2 * 2 * 2
    assert {case.variant for case in cases} - {""} == {
        "unclipped",
        "dropout",
        "chunked loss",
        "checkpointing",
        "incomplete window",
        "whole vocabulary",
        "send bf16",
        "send bf16-fp32sum",
    }


def test_launches_that_cannot_exist_name_the_reason() -> None:
    reasons = {
        launch: not_run(launch) for launch in plan_launches(["single", "ddp", "hsdp"], [1, 2, 4])
    }
    assert reasons[Launch("single", 2)] == "it is one process"
    assert "equal groups of at least two" in (reasons[Launch("hsdp", 2)] or "")
    assert (
        reasons[Launch("hsdp", 4)]
        is reasons[Launch("ddp", 2)]
        is reasons[Launch("single", 1)]
        is None
    )


def test_without_sizes_each_strategy_is_as_small_as_it_can_be() -> None:
    assert plan_launches(["single", "fsdp2", "hsdp"], []) == [
        Launch("single", 1),
        Launch("fsdp2", 2),
        Launch("hsdp", 4),
    ]
