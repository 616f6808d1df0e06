"""The roundoff and the error of a reduction are those that rounding really makes."""

from typing import get_args

import pytest
import torch

from toolkit.engines.build import TORCH_DTYPES
from toolkit.engines.reduction import Reduce
from toolkit.engines.strategies import PRECISIONS, Accumulation, Precision
from toolkit.verify.cases import Case
from toolkit.verify.tolerance import ROUNDOFF, reduction_error

RANKS, A = 4, 16


@pytest.mark.parametrize("precision", PRECISIONS)
def test_rounding_changes_a_number_by_the_roundoff_at_most_and_by_nearly_as_much(
    precision: Precision,
) -> None:
    numbers = torch.linspace(1, 2, 2_000_003, dtype=torch.float64)
    rounded = numbers.to(TORCH_DTYPES[precision]).double()
    farthest = ((rounded - numbers).abs() / numbers).max().item()
    assert 0.98 * ROUNDOFF[precision] < farthest <= ROUNDOFF[precision]


def test_roundoff_is_two_to_the_minus_digits() -> None:
    assert ROUNDOFF == {"fp32": 2.0**-24, "bf16": 2.0**-8, "fp16": 2.0**-11}


@pytest.mark.parametrize("mode", ["sharded", "replicated"])
@pytest.mark.parametrize("reduce", ["bf16", "bf16-fp32sum"])
def test_a_reductions_error_bounds_what_its_roundings_add_up_to(
    mode: Accumulation, reduce: Reduce
) -> None:
    """As FSDP2 does it: the ranks' gradients of one window, each micro-step's in fp32."""
    draws = torch.randn(A, RANKS, 20_000, generator=torch.Generator().manual_seed(1)) + 0.1
    bf16 = torch.bfloat16
    terms = draws if mode == "sharded" else draws.sum(0, keepdim=True)
    if reduce == "bf16-fp32sum":
        found = terms.to(bf16).float().sum((0, 1))
    elif mode == "sharded":
        found = _sum_in_bf16(terms.unbind(1)).float().sum(0)
    else:
        held = _sum_in_bf16(draws.unbind(0))
        found = _sum_in_bf16(held.unbind(0)).float()
    right = draws.double().sum((0, 1))
    error = float((found - right).norm() / right.norm())
    case = Case(accumulation=mode, grad_accum_steps=A, precision="fp32", reduce=reduce)
    limit = reduction_error(case, world_size=RANKS)
    assert limit / 20 < error < limit


def _sum_in_bf16(terms: tuple[torch.Tensor, ...]) -> torch.Tensor:
    total = terms[0].to(torch.bfloat16)
    for term in terms[1:]:
        total = total + term.to(torch.bfloat16)
    return total


@pytest.mark.parametrize("reduce", get_args(Reduce))
def test_what_is_sent_as_it_is_adds_no_error(reduce: Reduce) -> None:
    case = Case(accumulation="sharded", grad_accum_steps=A, precision="bf16", reduce=reduce)
    assert (reduction_error(case, world_size=RANKS) == 0) is (reduce != "bf16")
