"""One arm in this process, and what is caught before it is timed."""

from dataclasses import replace
from typing import Any

import pytest
import torch

from benchmarks import arm as arm_module
from benchmarks.arm import ArmRun, DisagreementError, Order, agree
from benchmarks.fitting import estimate_bytes
from tests.benchmarks.arms import arm
from toolkit.backends.communication import Expected, Range
from toolkit.backends.launched import read_launch
from toolkit.training.step import StepResult

pytestmark = pytest.mark.usefixtures("fresh_accelerate")


def build(**changed: Any) -> ArmRun:
    order = Order(
        arm=arm(**changed), shards=[], warm_up_steps=1, split_steps=2, timeout_s=60, address=""
    )
    return ArmRun(order, read_launch({}))


def test_an_arm_is_proved_and_timed() -> None:
    run = build()
    proof = run.prove()
    assert proof["agreement"].ok
    assert proof["agreement"].tolerance < 1e-4
    assert all(seen.calls == 0 for seen in proof["collectives"].values())
    assert proof["gradient_bytes_held"] == 4 * run.arm.model.model_sizes().parameter_count
    assert proof["peak_memory_bytes"] == pytest.approx(estimate_bytes(run.arm, "cpu"), rel=0.02)
    assert min(vars(proof["split"]).values()) >= 0
    step_s = run.repeat(3)
    assert len(step_s) == 3
    assert min(step_s) > 0


def test_a_first_step_apart_from_the_reference_is_caught() -> None:
    reference = (2.0, 0.5, 1e-6)

    def result(loss: float, grad_norm: float) -> StepResult:
        return StepResult(torch.tensor(loss), torch.tensor(grad_norm))

    assert agree(result(2.0, 0.5), reference).ok
    with pytest.raises(DisagreementError, match=r"loss of the first step is 2\.01"):
        agree(result(2.01, 0.5), reference)
    with pytest.raises(DisagreementError, match="grad_norm of the first step"):
        agree(result(2.0, 0.25), reference)
    with pytest.raises(DisagreementError, match="grad_norm of the first step"):
        agree(result(2.0, float("nan")), reference)


def test_a_model_that_is_not_the_reference_s_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("benchmarks.arm.SEED", 2)
    with pytest.raises(DisagreementError, match="plain PyTorch computes"):
        build().prove()


def test_counts_that_are_not_the_formulas_are_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    formulas = arm_module._expected_collectives

    def one_more(*arguments: Any) -> dict[str, Expected]:
        found = formulas(*arguments)
        return found | {"all_reduce": replace(found["all_reduce"], bytes=Range(4, 4))}

    monkeypatch.setattr(arm_module, "_expected_collectives", one_more)
    monkeypatch.setattr(arm_module, "_expected_held", lambda *_: 17)
    with pytest.raises(DisagreementError, match=r"all_reduce 0 bytes, not 4; .* held, not 17"):
        build().prove()
