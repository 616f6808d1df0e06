"""Every strategy in every accumulation mode against plain PyTorch, over real processes.

One launch serves all cases of a strategy and world size. The global batch is the same in all of
them, with unequal numbers of valid targets, whatever the world size and micro-batch.
"""

from dataclasses import replace
from functools import cache
from typing import Any

import pytest
import torch

from tests.distributed.distance import farthest_key_bias, farthest_number, farthest_tensor
from tests.samples import sample
from toolkit.commands.verify import print_tables
from toolkit.engines.mixture import Mixture, covering_mixtures
from toolkit.engines.reduction import possible_reductions
from toolkit.engines.strategies import (
    ACCUMULATIONS,
    SUPPORT,
    Accumulation,
    Strategy,
    possible_accumulations,
)
from toolkit.verify.cases import TINY, Case
from toolkit.verify.controls import CONTROLS
from toolkit.verify.reference import Trajectory, reference_trajectory
from toolkit.verify.run import LaunchReport, controls_of, verify_launch
from toolkit.verify.verdict import Launch, Verdict

pytestmark = pytest.mark.distributed

LAUNCHES: list[tuple[Strategy, int]] = [
    ("single", 1),
    ("ddp", 2),
    ("fsdp2", 2),
    ("fsdp2_no_reshard", 2),
    ("hsdp", 4),
    ("zero1", 2),
    ("zero2", 2),
    ("zero3", 2),
]
VARIANTS: list[dict[str, Any]] = [
    {"grad_clip": 0.0},
    {"loss": "chunked"},
    {"whole_vocabulary": True},
    {"dropout": 0.1},
    {"activation_checkpointing": True},
    {"incomplete_window": True},
    {"grad_accum_steps": 1},
]
RELATIVE = 1e-5
BF16_RELATIVE = 1e-2
LOSSLESS = 1e-6
CAUGHT_BY = {
    "divide twice": "gradient_max_rel",
    "divide by world size": "gradient_max_rel",
    "skip the last all-reduce": "gradient reductions at the last micro-step",
    "communicate at every micro-step": "gradient reductions before the last micro-step",
    "mixture undone by recursion": "bytes reduced before the last micro-step",
    "sync flag flipped after forward": "gradient reductions at the last micro-step",
    "untied head": "tied weights",
    "stale optimizer parameters": "optimizer's parameters",
    "scheduler stepped per rank": "grad_norm_max_rel",
    "clip before averaging": "gradient_max_rel",
    "norm without the tied weight": "own_norm_rel",
    "norm off by 1e-4": "own_norm_rel",
    "one rank's data repeated": "gradient_max_rel",
    "mean of means": "gradient_max_rel",
    "gradients left over": "grad_norm_max_rel",
    "one replica's weight nudged": "ranks 0, 1 differ",
}


@cache
def launched(strategy: Strategy, world_size: int) -> LaunchReport:
    launch = Launch(strategy, world_size)
    # The full matrix puts its faults into the other engines too.
    controls = [control for control in controls_of(launch) if control.strategies[0] == strategy]
    return verify_launch(launch, cases_of(strategy), TINY, controls=controls, timeout_s=280.0)


def verdicts(strategy: Strategy, world_size: int) -> dict[Case, Verdict]:
    return {verdict.case: verdict for verdict in launched(strategy, world_size).verdicts}


def cases_of(strategy: Strategy) -> list[Case]:
    """All modes with both optimizers and both precisions; DDP in every variant, as the full matrix
    has all strategies, but not compiled, which takes longer than all else; the plain engines and
    hybrid sharding, four ranks and the slowest, also cut otherwise, with one variant.

    So the micro-batches 1, 2 and 4 occur at world size 2, and 1 and 4 at 1 and 4.
    """
    modes = [mode for mode in ACCUMULATIONS if SUPPORT[strategy][mode].possible]
    cuts = {"single": (16,), "ddp": (2, 8), "hsdp": (1,)}.get(strategy, ())
    others = [Case(accumulation="replicated", grad_accum_steps=steps) for steps in cuts]
    others += [
        replace(Case(accumulation=modes[0], grad_accum_steps=4, steps=3), **variant)
        for variant in {"ddp": VARIANTS, "hsdp": VARIANTS[2:3]}.get(strategy, VARIANTS[:3])
    ]
    return [
        *(
            Case(accumulation=mode, grad_accum_steps=4, optimizer=optimizer)
            for mode in modes
            for optimizer in ("sgd", "adamw")
        ),
        *(bf16_case(mode) for mode in modes),
        *(
            replace(bf16_case(mode), reduce=reduce, precision=precision)
            for mode in modes
            # Hybrid sharding reduces as plain sharding does; the full matrix has fp32 there too.
            for precision in (("bf16",) if strategy == "hsdp" else ("fp32", "bf16"))
            for reduce in possible_reductions(strategy, precision)
            if strategy in ("ddp", "fsdp2") or (strategy == "hsdp" and mode != "replicated")
        ),
        *(mixed_case(mixture) for mixture in covering_mixtures(strategy, TINY.n_layer)),
        *others,
    ]


def bf16_case(mode: Accumulation) -> Case:
    return Case(accumulation=mode, grad_accum_steps=4, precision="bf16", steps=3)


def mixed_case(mixture: Mixture) -> Case:
    return Case(accumulation=mixture, grad_accum_steps=4, steps=3)


@cache
def reference(case: Case) -> Trajectory:
    return reference_trajectory(case, TINY, dtype=torch.float32)


def reference_of(case: Case) -> Trajectory:
    """The reference knows neither accumulation nor ranks, so one serves all cuts of a batch."""
    return reference(Case(accumulation="replicated", grad_accum_steps=1, optimizer=case.optimizer))


@pytest.mark.parametrize(("strategy", "world_size"), LAUNCHES)
def test_updates_equal_plain_pytorch(strategy: Strategy, world_size: int) -> None:
    found = verdicts(strategy, world_size)
    plain = [case for case in found if case.precision == "fp32" and not case.variant]
    for case in (case for case in plain if case.steps == 5):
        did, right = found[case].outcome.trajectory, reference_of(case)
        assert farthest_number(did.losses, right.losses) < RELATIVE, case
        assert farthest_number(did.grad_norms, right.grad_norms) < RELATIVE, case
        assert farthest_tensor(did.gradients, right.gradients) < RELATIVE, case
        assert farthest_tensor(did.parameters, right.parameters) < RELATIVE, case
        moved = case.optimizer_config().lr * case.steps
        assert farthest_key_bias(did.parameters, right.parameters) <= moved, case


def test_the_comparison_sees_one_weight_that_is_off() -> None:
    right = reference_of(Case(accumulation="replicated", grad_accum_steps=1)).parameters
    for name in ("transformer.h.1.mlp.c_fc.weight", "transformer.h.0.attn.c_attn.bias"):
        nudged = {key: tensor.clone() for key, tensor in right.items()}
        nudged[name].view(-1)[0] += 1e-2
        assert farthest_tensor(nudged, right) > RELATIVE
    assert farthest_number([1.0, 2.001], [1.0, 2.0]) > RELATIVE
    assert not farthest_number([float("nan"), 2.0], [1.0, 2.0]) < RELATIVE


@pytest.mark.parametrize(("strategy", "world_size"), LAUNCHES)
def test_every_case_is_exact_up_to_rounding_and_sends_what_it_should(
    strategy: Strategy, world_size: int
) -> None:
    """The verdict of `toolkit verify`: distance from fp64, collectives and held gradients counted,
    replicas equal."""
    for case, verdict in verdicts(strategy, world_size).items():
        assert verdict.problems == [], case


@pytest.mark.parametrize(("strategy", "world_size"), LAUNCHES)
def test_with_gpt2s_whole_vocabulary_loss_and_norm_are_those_of_fp64(
    strategy: Strategy, world_size: int
) -> None:
    """`test_whole_vocabulary` has all modes and world sizes."""
    [verdict] = [v for c, v in verdicts(strategy, world_size).items() if c.whole_vocabulary]
    assert verdict.difference.grad_norm_max_rel < 1e-6
    assert verdict.difference.loss_max_abs < 1e-6 * 10.8


@pytest.mark.parametrize("fault", [control.name for control in CONTROLS])
def test_a_fault_put_in_on_purpose_is_caught(fault: str) -> None:
    [strategy] = [control.strategies[0] for control in CONTROLS if control.name == fault]
    caught = {control.name: control.by for control in launched(strategy, 2).controls}
    assert CAUGHT_BY[fault] in (caught[fault] or "nothing")


@pytest.mark.sample
@pytest.mark.parametrize(
    ("strategy", "command"),
    [
        ("zero3", "toolkit verify --strategies zero3 --precision fp32"),
        ("ddp", "toolkit verify --strategies ddp --precision fp32 --controls"),
    ],
)
def test_the_readme_shows_what_is_printed(
    strategy: Strategy, command: str, capsys: pytest.CaptureFixture[str]
) -> None:
    report = launched(strategy, 2)
    print_tables(report.verdicts, report.controls, {}, wide=False)
    sample(command).assert_is_like(capsys.readouterr().out)


@pytest.mark.parametrize(("strategy", "world_size"), LAUNCHES)
def test_bf16_stays_near_ddps(strategy: Strategy, world_size: int) -> None:
    found = verdicts(strategy, world_size)
    case = bf16_case("replicated")
    ddp = verdicts("ddp", 2)[case].outcome.trajectory
    for case in (case for case in found if case.precision == "bf16" and not case.variant):
        near = found[case].outcome.trajectory
        losses = torch.tensor(near.losses) / torch.tensor(ddp.losses)
        norms = torch.tensor(near.grad_norms) / torch.tensor(ddp.grad_norms)
        assert (losses - 1).abs().max() < BF16_RELATIVE, case
        assert (norms - 1).abs().max() < BF16_RELATIVE, case


@pytest.mark.parametrize(("strategy", "world_size"), [("fsdp2", 2), ("hsdp", 4)])
def test_half_the_bytes_lose_nothing_where_each_micro_step_is_reduced(
    strategy: Strategy, world_size: int
) -> None:
    found = verdicts(strategy, world_size)
    for mode in set(possible_accumulations(strategy)) - {"replicated"}:
        half, whole = found[bf16_case(mode)], found[replace(bf16_case(mode), reduce="fp32")]
        own, right = half.outcome.trajectory.gradients, whole.outcome.trajectory.gradients
        assert farthest_tensor(own, right) < LOSSLESS
        scattered = [each.outcome.traffic for each in (half, whole)]
        assert 2 * scattered[0]["all_to_all"].bytes == scattered[1]["reduce_scatter"].bytes
        rounded = found[replace(bf16_case(mode), reduce="bf16")].outcome.trajectory.gradients
        assert farthest_tensor(rounded, right) > LOSSLESS


def test_the_steps_are_worth_comparing() -> None:
    """Some steps are clipped and some are not, the loss falls, and clipping makes a difference."""
    clipped = reference(Case(accumulation="replicated", grad_accum_steps=1))
    unclipped = reference(Case(accumulation="replicated", grad_accum_steps=1, grad_clip=0.0))
    clip = Case(accumulation="replicated", grad_accum_steps=1).grad_clip
    assert min(clipped.grad_norms) < clip < max(clipped.grad_norms)
    assert clipped.losses[-1] < clipped.losses[0]
    assert farthest_tensor(clipped.parameters, unclipped.parameters) > 10 * RELATIVE
