from collections.abc import Callable

import numpy as np
import pytest
import torch

from tests.training.ranks import Rows, arrays, on_ranks
from toolkit.engines.engine import Engine
from toolkit.training.evaluate import Evaluation, evaluate
from toolkit.verify import worker
from toolkit.verify.cases import TINY, Case

Build = Callable[[Case], Engine]


def evaluation(*ranks: list[Rows]) -> Evaluation:
    """What every rank finds on its list of batches."""
    first, *others = on_ranks(
        lambda engine: evaluate(engine, map(arrays, ranks[engine.rank])), len(ranks)
    )
    assert all(other == first for other in others)
    return first


ONE: Rows = [[2, *9 * [None]]]
NINE: Rows = [[None, *9 * [10]]]


def test_a_batch_counts_by_its_valid_targets() -> None:
    """Sums 2 and 90 over 1 and 9 targets: 9.2, and not 6, the mean of the means 2 and 10."""
    assert evaluation([ONE, NINE]) == Evaluation(loss=9.2, tokens=10)


def test_a_rank_counts_by_its_valid_targets() -> None:
    assert evaluation([ONE], [NINE]) == Evaluation(loss=9.2, tokens=10)


@pytest.mark.parametrize("rows_per_batch", [1, 2, 8])
def test_the_size_of_a_batch_changes_nothing(rows_per_batch: int) -> None:
    losses = [1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 12.0]
    rows: Rows = [[loss] for loss in losses]
    batches = [rows[i : i + rows_per_batch] for i in range(0, 8, rows_per_batch)]
    assert evaluation(batches) == Evaluation(loss=5.0, tokens=8)


def test_padding_alone_adds_nothing() -> None:
    assert evaluation([[[4, 6]]], [[[None, None]]]) == Evaluation(loss=5.0, tokens=2)


def test_many_batches_lose_no_precision() -> None:
    """fp32 would stop counting at 2**24 and lose the small losses beside the large ones."""
    large, small = [[2.0**24]], [[1.0]]
    found = evaluation([large, *100 * [small]])
    assert found.loss == (2**24 + 100) / 101


def test_millions_of_tokens_lose_no_precision() -> None:
    """More than fp32 can count, 2**24, and each with a loss that fp32 cannot add to their sum."""
    inputs = np.full((1000, 1000), 0.1, dtype=np.float32)
    batch = inputs, np.ones(inputs.shape, dtype=np.int64)
    [found] = on_ranks(lambda engine: evaluate(engine, 20 * [batch]), 1)
    assert found.tokens == 20_000_000
    assert found.loss == pytest.approx(0.1, rel=1e-6)


def test_evaluation_leaves_no_trace(single_engine: Build) -> None:
    """No dropout while it lasts and dropout again after it, and no gradient."""
    case = Case(accumulation="replicated", grad_accum_steps=1, dropout=0.5)
    engine = single_engine(case)
    tokens, targets = (part.numpy() for part in worker.own_micro_batches(case, TINY, engine, 0)[0])
    before = torch.get_rng_state()
    first, second = (evaluate(engine, [(tokens, targets)]) for _ in range(2))
    assert first == second
    assert torch.equal(torch.get_rng_state(), before)
    assert engine.model.training
    assert all(parameter.grad is None for parameter in engine.module.parameters())
