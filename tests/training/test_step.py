from collections.abc import Callable
from dataclasses import replace

import pytest
import torch

from tests.training.ranks import Rows, ThreadEngine, batch, on_ranks
from toolkit.engines.engine import Engine
from toolkit.model.loss import IGNORE_INDEX
from toolkit.training.step import StepResult, count_valid, train_step
from toolkit.verify import worker
from toolkit.verify.cases import TINY, Case

Build = Callable[[Case], Engine]


def step(*ranks: list[Rows], lr: float = 0.5) -> list[tuple[StepResult, float]]:
    """One step of one rank for each argument, a list of micro-batches; also its factor after."""

    def work(engine: ThreadEngine) -> tuple[StepResult, float]:
        result = train_step(engine, [batch(rows) for rows in ranks[engine.rank]], lr=lr)
        loss = engine.ranks.sum(result.loss_share)
        return StepResult(loss, result.grad_norm), engine.model.factor.item()

    return on_ranks(work, len(ranks))


def only(found: list[tuple[StepResult, float]]) -> tuple[float, float, float]:
    """Loss, gradient and factor that all ranks found alike."""
    distinct = {
        (result.loss_share.item(), result.grad_norm.item(), factor) for result, factor in found
    }
    assert len(distinct) == 1
    return distinct.pop()


FIRST: list[Rows] = [[[2, 4]], [[6, 8]]]
SECOND: list[Rows] = [[[10, 12]], [[14, 16]]]


def test_losses_of_two_micro_steps_give_their_mean() -> None:
    assert only(step(FIRST)) == (5.0, 5.0, 1 - 0.5 * 5)


def test_the_mean_is_over_all_ranks() -> None:
    assert only(step(FIRST, SECOND)) == (9.0, 9.0, 1 - 0.5 * 9)


@pytest.mark.parametrize(
    "ranks",
    [
        [FIRST + SECOND],
        [[[[2, 4, 6, 8, 10, 12, 14, 16]]]],
        [[[[2], [4], [6], [8]]], [[[10], [12], [14], [16]]]],
        [
            [[[loss]] for loss in (2, 4)],
            [[[loss]] for loss in (6, 8)],
            [[[loss]] for loss in (10, 12)],
            [[[loss]] for loss in (14, 16)],
        ],
    ],
)
def test_how_the_batch_is_cut_changes_nothing(ranks: list[list[Rows]]) -> None:
    assert only(step(*ranks)) == (9.0, 9.0, 1 - 0.5 * 9)


HUNDRED: Rows = [100 * [2.0] + 200 * [None]]
THREE_HUNDRED: Rows = [300 * [1.0]]


def test_a_token_counts_the_same_in_a_fuller_micro_batch() -> None:
    """100 tokens at 2.0 and 300 at 1.0: 1.25, and not the mean of the two means."""
    loss, gradient, _ = only(step([HUNDRED, THREE_HUNDRED]))
    assert (loss, gradient) == pytest.approx((1.25, 1.25), rel=1e-6)


def test_a_token_counts_the_same_on_a_fuller_rank() -> None:
    loss, gradient, _ = only(step([HUNDRED], [THREE_HUNDRED]))
    assert (loss, gradient) == pytest.approx((1.25, 1.25), rel=1e-6)


def test_a_rank_without_a_valid_target_adds_nothing() -> None:
    assert only(step([[[3, 5]]], [[[None, None]]]))[:2] == (4.0, 4.0)


def test_no_valid_target_anywhere_is_a_loss_of_zero() -> None:
    assert only(step([[[None]], [[None]]])) == (0.0, 0.0, 1.0)


def test_the_learning_rate_is_the_steps_own() -> None:
    assert only(step(FIRST, lr=0.01))[2] == pytest.approx(1 - 0.01 * 5)


def test_valid_targets_are_counted_over_all_micro_batches() -> None:
    count = count_valid([batch([[1, None], [None, 2]]), batch([[None, None]]), batch([[0]])])
    assert (count.item(), count.dtype) == (3, torch.int64)


def test_the_losses_of_many_micro_steps_do_not_round_one_after_another() -> None:
    """Each adds the same share, in fp32 with an error that adds up as well."""
    [(result, _)] = step([[[0.1]]] * 3000)
    assert result.loss_share.item() == pytest.approx(0.1, rel=2e-7)


def test_a_real_engine_has_the_loss_and_norm_of_the_whole_batch(single_engine: Build) -> None:
    """Four micro-steps with unequal numbers of valid targets against one plain pass."""
    case = Case(accumulation="replicated", grad_accum_steps=4)
    engine = single_engine(case)
    micro_batches = worker.own_micro_batches(case, TINY, engine, 0)
    tokens, targets = (torch.cat(parts) for parts in zip(*micro_batches, strict=True))
    valid = [(part != IGNORE_INDEX).sum().item() for _, part in micro_batches]
    assert len(set(valid)) > 1
    model = single_engine(replace(case, grad_accum_steps=1)).module
    mean = model(tokens, targets) / sum(valid)
    mean.backward()
    norm = torch.stack([p.grad.norm() for p in model.parameters() if p.grad is not None]).norm()
    result = train_step(engine, micro_batches, lr=0.1)
    assert result.loss_share.item() == pytest.approx(mean.item(), rel=1e-6)
    assert result.grad_norm.item() == pytest.approx(norm.item(), rel=1e-5)
    assert all(parameter.grad is None for parameter in engine.module.parameters())


@pytest.mark.parametrize("grad_clip", [0.0, 0.1, 1e6])
def test_clipping_is_torchs_and_touches_no_gradient_that_is_short_enough(
    single_engine: Build, grad_clip: float
) -> None:
    case = Case(accumulation="replicated", grad_accum_steps=1, grad_clip=grad_clip)
    engine = single_engine(case)
    engine.optimizer.step = lambda: None
    engine._clear_gradients = lambda: None  # type: ignore[method-assign]
    [(tokens, targets)] = worker.own_micro_batches(case, TINY, engine, 0)
    engine.model(tokens, targets).backward()
    before = [p.grad.clone() for p in engine.parameters if p.grad is not None]
    norm = engine.clip_and_step()
    after = [p.grad for p in engine.parameters if p.grad is not None]
    for parameter, gradient in zip(engine.parameters, before, strict=True):
        parameter.grad = gradient.clone()
    max_norm = grad_clip or float("inf")
    expected = torch.nn.utils.clip_grad_norm_(list(engine.parameters), max_norm)
    torch.testing.assert_close(norm, expected, check_dtype=False)
    torch.testing.assert_close(after, [p.grad for p in engine.parameters])
    touched = not all(map(torch.equal, after, before))
    assert touched == (grad_clip == 0.1)
