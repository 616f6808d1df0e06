"""The comparison of loops: its arithmetic and its orders; one long test runs it."""

import json
from dataclasses import replace
from pathlib import Path
from statistics import mean

import pytest

from benchmarks.overhead import driver
from benchmarks.overhead.__main__ import STRATEGIES, WORKLOADS, comparisons, problems_of
from benchmarks.overhead.compared import LOSS_TOLERANCE, compare
from benchmarks.overhead.driver import LoopTurns, cases_of, reason_not_to_run
from benchmarks.overhead.toolkit_loop import run_file
from benchmarks.overhead.turns import LoopCase, LoopOrder, Turn
from benchmarks.overhead.workload import LR, build_adamw, build_model
from toolkit.config import load_run_config
from toolkit.engines.strategies import Strategy
from toolkit.training.batches import build_batches, plan_run

TINY = WORKLOADS["tiny"]


def turns(*step_s: float, loss: float = 5.0) -> list[Turn]:
    """One turn of two steps for each argument."""
    return [Turn([seconds, 3 * seconds], cpu_s=seconds, loss=loss) for seconds in step_s]


def test_rounds_are_compared_one_by_one_and_their_median_counts() -> None:
    """The machine was three times slower in the last round, for both."""
    found = compare(turns(0.1, 0.1, 0.3), turns(0.2, 0.1, 0.6))
    assert found["speed"].median == pytest.approx(2.0)
    assert (found["speed"].low, found["speed"].high) == (pytest.approx(1.5), pytest.approx(2.0))
    assert found["overhead_us"].median == pytest.approx(-2e5)
    assert found["cpu"].median == pytest.approx(0.5)


def loop_case(loop: str, strategy: Strategy) -> LoopCase:
    return cases_of(strategy, TINY)[0].model_copy(update={"loop": loop})


def measured(loop: str, loss: float = 5.0) -> LoopTurns:
    return LoopTurns(loop_case(loop, "ddp"), turns(0.1, 0.1, loss=loss))


def test_the_toolkit_is_compared_with_all_that_ran() -> None:
    absent = LoopTurns(loop_case("fabric", "ddp"), not_run="lightning is not installed")
    found = [measured("plain"), measured("toolkit"), measured("trainer"), absent]
    assert [(c["case"], c["against"]) for c in comparisons(found)] == [
        ("toolkit ddp", "plain ddp"),
        ("toolkit ddp", "trainer ddp"),
    ]
    assert problems_of(found) == []


@pytest.mark.parametrize("loss", [5.0 * (1 + 2 * LOSS_TOLERANCE), float("nan")])
def test_another_loss_is_a_problem(loss: float) -> None:
    [problem] = problems_of([measured("plain"), measured("toolkit"), measured("fabric", loss)])
    assert problem.startswith("fabric ddp: its loss is ")


def test_a_case_that_failed_is_a_problem_and_one_that_cannot_run_is_none() -> None:
    failed = LoopTurns(
        loop_case("toolkit", "ddp"), not_run="failed: its processes ended: out of luck"
    )
    absent = LoopTurns(
        loop_case("trainer", "fsdp2"), not_run=reason_not_to_run(loop_case("trainer", "fsdp2"))
    )
    assert problems_of([measured("plain"), failed, absent]) == [f"toolkit ddp: {failed.not_run}"]


def test_what_is_not_installed_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(driver, "find_spec", lambda package: None)
    reasons = {case.loop: reason_not_to_run(case) for case in cases_of("ddp", TINY)}
    assert reasons == {
        "plain": None,
        "toolkit": None,
        "trainer": "transformers is not installed",
        "fabric": "lightning is not installed",
    }


def order(folder: Path) -> LoopOrder:
    return LoopOrder(
        case=loop_case("toolkit", "ddp"),
        folder=folder,
        timeout_s=1.0,
        workload=TINY,
        data=folder / "data",
    )


def test_an_order_comes_back_as_it_was(tmp_path: Path) -> None:
    assert LoopOrder.model_validate_json(order(tmp_path).model_dump_json()) == order(tmp_path)


def test_the_plain_loop_reads_what_the_toolkit_reads(tmp_path: Path) -> None:
    """Both ranks, every micro-step, in the order of an unshuffled run."""
    TINY.write_tokens(tmp_path / "data")
    file = tmp_path / "run.yaml"
    file.write_text(json.dumps(run_file(order(tmp_path))))
    config = load_run_config(str(file), [])
    plan = plan_run(config, world_size=TINY.world_size)
    assert plan.grad_accum_steps == TINY.grad_accum_steps
    for rank in range(TINY.world_size):
        plain = TINY.micro_batches(tmp_path / "data", rank=rank)
        batches = build_batches(config, plan, rank=rank)
        for step in range(3):
            for tokens, targets in batches.micro_batches(step):
                own_tokens, own_targets = next(plain)
                assert own_tokens.tolist() == tokens.tolist()
                assert own_targets.tolist() == targets.tolist()


def mean_loss(folder: Path, lr: float, steps: int = 12) -> float:
    """Of a turn, trained by hand on one rank's tokens."""
    model = build_model(TINY)
    optimizer = build_adamw(model)
    losses = []
    for _, (tokens, targets) in zip(range(steps), TINY.micro_batches(folder, rank=0), strict=False):
        loss = model(tokens, targets) / targets.numel()
        loss.backward()
        for group in optimizer.param_groups:
            group["lr"] = lr
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    return mean(losses)


def test_a_tenth_more_learning_rate_is_beyond_the_tolerance(tmp_path: Path) -> None:
    TINY.write_tokens(tmp_path / "data")
    right, wrong = (mean_loss(tmp_path / "data", lr) for lr in (LR, 1.1 * LR))
    assert abs(wrong / right - 1) > LOSS_TOLERANCE


@pytest.mark.long
@pytest.mark.distributed
@pytest.mark.parametrize("strategy", STRATEGIES)
def test_all_loops_learn_the_same(strategy: Strategy) -> None:
    short = replace(TINY, turns=3, steps_per_turn=6)
    found = driver.measure(cases_of(strategy, short), short)
    assert problems_of(found) == []
    assert all(len(one.turns) == 2 for one in found if not one.not_run)
    assert {one.case.name for one in found if one.turns} >= {
        f"plain {strategy}",
        f"toolkit {strategy}",
        f"toolkit {strategy} chunked",
    }
