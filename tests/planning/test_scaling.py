"""Scaling curves, failures and states, against arithmetic by hand."""

from math import sqrt
from pathlib import Path

import pytest
from typer.testing import CliRunner

from tests.planning.test_search import cluster_of, search_of
from toolkit.cli import app
from toolkit.config import load_run_config
from toolkit.planning.answer import PlanRow, find_answer
from toolkit.planning.curve import curve, takes_over
from toolkit.planning.scaling import GPU_DAYS_BETWEEN_FAILURES, Failures
from toolkit.planning.states import STATES, states_rows


@pytest.fixture(scope="module")
def best() -> PlanRow:
    found = find_answer(search_of(strategies=("fsdp2",)), cluster_of("A100-40", per_machine=4)).best
    assert found is not None
    return found


def test_weak_scaling_keeps_the_tokens_of_a_gpu_and_strong_those_of_a_step(best: PlanRow) -> None:
    weak, strong = curve(best, "weak"), curve(best, "strong")
    assert {point.row.tokens_per_step // point.gpus for point in weak} == {131_072 // 8}
    assert {point.row.tokens_per_step for point in strong} == {131_072}
    assert [point.gpus for point in strong] == [4, 8, 16, 32, 64, 128]  # a sequence each
    assert weak[-1].gpus == 8192


def test_efficiency_is_of_the_first_point_and_falls(best: PlanRow) -> None:
    strong = curve(best, "strong")
    assert strong[0].efficiency == (1, 1)
    assert strong[-1].efficiency[1] < strong[1].efficiency[0] < 1
    first, last = strong[0].row.range_s, strong[-1].row.range_s
    assert strong[-1].efficiency[0] == pytest.approx(
        min(4 * a / (128 * b) for a, b in zip(first, last, strict=True))
    )


def test_communication_takes_over_where_half_of_a_step_waits(best: PlanRow) -> None:
    points = curve(best, "strong")
    over = takes_over(points)
    assert over is not None
    assert all((point.exposed[0] >= 0.5) == (point.gpus >= over) for point in points)
    assert takes_over(curve(best, "weak")[:1]) is None


def test_the_interval_is_dalys_and_near_youngs() -> None:
    failures = Failures(gpus=GPU_DAYS_BETWEEN_FAILURES, checkpoint=10**10)
    assert (failures.per_day, failures.save_s) == (1, 10)
    young = sqrt(2 * 10 * 86_400)
    assert failures.interval_s == pytest.approx(young + (10 / 3) - 10, rel=1e-3)
    assert Failures(gpus=10**9, checkpoint=10**12).interval_s == 86_400 / (10**9 / 2_111)


def test_states_are_sixteen_bytes_on_one_gpu_and_what_a_stage_leaves_on_eight() -> None:
    run = load_run_config(None, ["model.preset=gpt2", "precision=bf16"])
    rows = {
        (row.settings.strategy, row.settings.accumulation): [row.per_weight(p) for p in STATES]
        for row in states_rows(run, cluster_of("A100-40"))
    }
    assert rows["single", "replicated"] == [4, 4, 8]
    assert rows["ddp", "replicated"] == [4, 4, 8]
    assert rows["fsdp2", "sharded"] == pytest.approx([4 / 8, 4 / 8, 8 / 8], rel=0.01)
    assert rows["zero2", "sharded"] == pytest.approx([2 + 4 / 8, 4 / 8, 8 / 8], rel=0.01)


def test_the_command_prints_and_draws(tmp_path: Path) -> None:
    words = ["plan", "--preset", "gpt2", "--gpus", "8", "--strategies", "fsdp2"]
    drawn = tmp_path / "curve.svg"
    result = CliRunner().invoke(app, [*words, "--curve", "gpus", "--plot", str(drawn)])
    assert result.exit_code != 0
    assert "--between-machines" in str(result.exception)
    result = CliRunner().invoke(
        app, [*words, "--cluster", "aws-p5", "--curve", "gpus", "--plot", str(drawn)]
    )
    assert result.exit_code == 0
    assert "strong scaling of fsdp2" in result.stdout
    assert drawn.read_text().count("<path") > 50
    states = CliRunner().invoke(app, [*words, "--bytes-per-weight"])
    assert "16.00" in states.stdout
    assert "a checkpoint holds 4 bytes of fp32 weight and 8 of AdamW's two" in states.stdout
