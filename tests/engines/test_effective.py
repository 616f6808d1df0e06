import copy
from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from unittest.mock import patch

import pytest
import torch

from toolkit.engines.effective import check_effective, check_first_step
from toolkit.engines.engine import Engine
from toolkit.engines.launched import read_launch
from toolkit.engines.process_group import start_process_group
from toolkit.errors import UsageError
from toolkit.model.gpt2 import GPT2
from toolkit.training.build import TIED
from toolkit.training.optimizer import build_optimizer
from toolkit.training.step import train_step
from toolkit.verify import worker
from toolkit.verify.cases import TINY, Case

SINGLE = read_launch({})
CASE = Case(accumulation="replicated", grad_accum_steps=4, optimizer="adamw")


def build(case: Case = CASE) -> Engine:
    start_process_group(SINGLE, timeout=timedelta(seconds=60))
    return worker.build_case(case, TINY, SINGLE)


def watched_step(engine: Engine, *, lr: float = 1e-3) -> None:
    with check_first_step(engine, worker.reductions_of(CASE, TINY, SINGLE)):
        train_step(engine, worker.own_micro_batches(CASE, TINY, engine, 0), lr=lr)


def test_what_is_effective_is_returned_as_facts() -> None:
    facts = check_effective(build(), precision="fp32", tied=TIED)
    assert {fact.name: fact.describe() for fact in facts} == {
        "world size": "1",
        "wrapper": "GPT2",
        "tied weights": "one parameter",
        "optimizer's parameters": "the model's",
        "Accelerate's own divisor of the loss": "1",
        "parameter dtypes": "float32",
    }


def test_an_inherited_count_of_micro_steps_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    """Accelerate takes it over what it is told, and divides every loss by it."""
    # What the launcher set is taken out as the processes are joined; this comes later.
    start_process_group(SINGLE, timeout=timedelta(seconds=60))
    monkeypatch.setenv("ACCELERATE_GRADIENT_ACCUMULATION_STEPS", "4")
    with pytest.raises(UsageError, match="divisor of the loss: asked 1, found 4"):
        worker.build_case(CASE, TINY, SINGLE)


def test_a_broken_tie_is_caught() -> None:
    untied = patch.object(GPT2, "tie_weights", lambda model: None)
    with untied, pytest.raises(UsageError, match="tied weights: asked one parameter, found"):
        build()


def test_a_stale_optimizer_is_caught() -> None:
    """An optimizer of other parameters than the model's: nothing is learned."""

    def build_on_a_copy(model: GPT2, config: object) -> torch.optim.Optimizer:
        return build_optimizer(copy.deepcopy(model), config)  # type: ignore[arg-type]

    stale = patch.object(worker, "build_optimizer", build_on_a_copy)
    with stale, pytest.raises(UsageError, match=r"found without transformer\.wte\.weight"):
        build()


def _lone(engine: Engine) -> None:
    engine.launched = replace(SINGLE, world_size=2)


def _unwrapped(engine: Engine) -> None:
    engine.launched = replace(SINGLE, strategy="ddp")


def _low_precision(engine: Engine) -> None:
    engine.module.to(torch.bfloat16)


@pytest.mark.parametrize(
    ("fault", "words"),
    [
        (_lone, "world size: asked 2, found 1"),
        (_unwrapped, "wrapper: asked DistributedDataParallel, found GPT2"),
        (_low_precision, "parameter dtypes: asked float32, found bfloat16"),
    ],
)
def test_what_is_not_effective_is_named(fault: Callable[[Engine], None], words: str) -> None:
    engine = build()
    fault(engine)
    with pytest.raises(UsageError) as caught:
        check_effective(engine, precision="fp32", tied=TIED)
    assert words in str(caught.value)


def test_every_difference_is_named_at_once() -> None:
    engine = build()
    _lone(engine)
    _low_precision(engine)
    with pytest.raises(UsageError, match=r"world size.*; parameter dtypes"):
        check_effective(engine, precision="fp32", tied=TIED)


def test_a_sound_first_step_passes() -> None:
    watched_step(build())


def test_parameters_that_lie_still_are_caught() -> None:
    with pytest.raises(UsageError, match="most parameters moved: asked True, found False"):
        watched_step(build(), lr=0.0)


def test_optimizer_state_in_low_precision_is_caught() -> None:
    engine = build()
    clip_and_step = engine.clip_and_step

    def step_then_round() -> torch.Tensor:
        norm = clip_and_step()
        for state in engine.optimizer.state.values():
            state["exp_avg"] = state["exp_avg"].bfloat16()
        return norm

    with (
        patch.object(engine, "clip_and_step", step_then_round),
        pytest.raises(UsageError, match=r"optimizer state dtypes: .*bfloat16"),
    ):
        watched_step(engine)
