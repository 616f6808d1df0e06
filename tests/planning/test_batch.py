"""Whichever dial is missing is solved for."""

import pytest

from toolkit.errors import UsageError
from toolkit.planning.batch import solve_batch

FULL = {
    "tokens_per_step": 8_388_608,
    "seq_len": 4_096,
    "micro_batch_size": 2,
    "grad_accum_steps": 16,
    "gpus": 64,
}


@pytest.mark.parametrize("missing", [None, "tokens_per_step", "micro_batch_size", "gpus"])
def test_the_missing_number_follows(missing: str | None) -> None:
    given = {**FULL, **({missing: None} if missing else {})}
    plan = solve_batch(**given)  # type: ignore[arg-type]
    assert (plan.tokens_per_step, plan.micro_batch_size) == (8_388_608, 2)
    assert (plan.grad_accum_steps, plan.world_size) == (16, 64)


@pytest.mark.parametrize(("gpus", "steps"), [(1, 32), (8, 4)])
def test_accumulation_follows(gpus: int, steps: int) -> None:
    plan = solve_batch(
        tokens_per_step=524_288,
        seq_len=1_024,
        micro_batch_size=16,
        grad_accum_steps=None,
        gpus=gpus,
    )
    assert plan.grad_accum_steps == steps


def test_a_product_that_does_not_come_out_names_the_nearest() -> None:
    with pytest.raises(UsageError, match="--tokens-per-step 8388608"):
        solve_batch(**{**FULL, "tokens_per_step": 8_388_609, "grad_accum_steps": None})  # type: ignore[arg-type]


def test_two_missing_cannot_be_solved_for() -> None:
    with pytest.raises(UsageError, match="--grad-accum-steps, --gpus only one"):
        solve_batch(**{**FULL, "gpus": None, "grad_accum_steps": None})  # type: ignore[arg-type]
