"""The table of `toolkit verify`: a line a case, and what is wrong in words below it."""

from dataclasses import replace
from typing import Any

import pytest
from rich.console import Console

from toolkit.engines.traffic import KINDS, Traffic
from toolkit.verify.cases import TINY, Case
from toolkit.verify.compare import Difference
from toolkit.verify.outcome import Outcome
from toolkit.verify.reference import Trajectory
from toolkit.verify.report import WIDEST, WIDTH, build_notes, build_table
from toolkit.verify.run import cases_of, plan_launches
from toolkit.verify.verdict import Launch, Verdict

LIMITS = dict.fromkeys(
    ("loss_max_abs", "grad_norm_max_rel", "own_norm_rel", "gradient_max_rel", "param_max_rel"), 2e-6
)


def verdict(launch: Launch, case: Case, **changes: Any) -> Verdict:
    traffic = dict.fromkeys(KINDS, Traffic(1234, 123_456_789_012))
    made = Verdict(
        launch=launch,
        case=case,
        difference=Difference(1e-7, 1.2e-7, 1e-7, 1e-7, 1e-7, 0.0, "ln_f.bias"),
        limits=LIMITS,
        torch_norm_max_rel=1e-7,
        outcome=Outcome(Trajectory([], [], {}, {}), traffic, 123_456_789, [], 1, []),
        expected={},
        expected_held_gradient_bytes=None,
        problems=[],
    )
    return replace(made, **changes)


def everything(**changes: Any) -> list[Verdict]:
    """Every case that there is, on as many ranks and micro-steps as fit in a step."""
    return [
        verdict(launch, case, **changes)
        for launch in plan_launches(["single", "fsdp2_no_reshard", "hsdp", "ddp"], [16])
        for case in cases_of(
            launch,
            accumulations=["replicated", "sharded", "deferred"],
            grad_accum_steps=[16],
            precisions=["fp32", "bf16"],
            steps=3,
        )
    ]


def printed(verdicts: list[Verdict], *, wide: bool) -> list[str]:
    console = Console(width=WIDEST if wide else WIDTH)
    with console.capture() as capture:
        console.print(build_table(verdicts, wide=wide))
    return capture.get().splitlines()


@pytest.mark.parametrize("wide", [False, True])
@pytest.mark.parametrize("changes", [{}, {"torch_norm_max_rel": 1e-3, "problems": ["bad " * 50]}])
def test_a_case_is_one_line_with_nothing_cut(wide: bool, changes: dict[str, Any]) -> None:
    verdicts = everything(**changes)
    title, head, *lines = printed(verdicts, wide=wide)
    assert (title.strip(), head.split()[0]) == (
        "Largest differences from the exact (fp64) update",
        "strategy",
    )
    assert len(lines) == len(verdicts)
    assert "…" not in "".join([head, *lines])
    for line, shown in zip(lines, verdicts, strict=True):
        words = [shown.launch.strategy, shown.case.accumulation, shown.case.variant, "1.2e-07"]
        assert all(word in line for word in words)
        assert line.split()[-1] == ("no" if shown.problems else "yes")
        assert ("120,563,271" in line) == wide


def test_what_is_wrong_stands_under_the_table_with_its_case() -> None:
    case = Case(accumulation="sharded", grad_accum_steps=4, loss="chunked")
    wrong = verdict(Launch("fsdp2", 2), case, problems=["one thing", "another"])
    assert build_notes([verdict(Launch("ddp", 2), case), wrong]) == [
        "fsdp2 2 sharded 4 fp32 sgd chunked loss: one thing",
        "fsdp2 2 sharded 4 fp32 sgd chunked loss: another",
    ]


def test_pytorchs_own_norm_beyond_the_limit_is_marked_and_explained() -> None:
    case = Case(accumulation="sharded", grad_accum_steps=4)
    near, far = (verdict(Launch("ddp", 2), case, torch_norm_max_rel=x) for x in (1.9e-6, 3e-4))
    lines = printed([near, far], wide=False)[2:]
    assert ["1.2e-07 *" in line for line in lines] == [False, True]
    assert build_notes([near]) == []
    assert build_notes([near, far]) == [
        "* PyTorch's own gradient norm is up to 3.0e-04 off here, where a case may be 2.0e-06 off"
    ]
    assert far.to_json()["torch_norm_max_rel"] == 3e-4
    assert far.to_json()["ok"] is True


def test_under_dropout_only_a_case_itself_is_judged() -> None:
    case = Case(accumulation="replicated", grad_accum_steps=4, dropout=0.1)
    beyond = verdict(Launch("ddp", 2), case, limits={"own_norm_rel": 2e-6}, torch_norm_max_rel=1.0)
    [line] = printed([beyond], wide=False)[2:]
    assert line.split()[-4:] == ["-", "-", "-", "yes"]
    assert build_notes([beyond]) == []


def test_the_model_of_the_whole_vocabulary_is_the_shared_one_but_for_that() -> None:
    case = Case(accumulation="replicated", grad_accum_steps=4)
    assert case.model(TINY) == TINY
    assert replace(case, whole_vocabulary=True).model(TINY) == replace(TINY, vocab_size=50_304)
