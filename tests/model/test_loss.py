import math
import sys
from collections.abc import Callable
from types import ModuleType
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from tests.model.largest import Largest
from toolkit.model import loss
from toolkit.model.loss import (
    CHUNK_ROWS,
    IGNORE_INDEX,
    chunked_cross_entropy_sum,
    cross_entropy_sum,
)
from toolkit.model.sizes import PADDED_VOCAB_SIZE

LossSum = Callable[..., torch.Tensor]

# A whole number of chunks, one row more, one row less, and less than one chunk.
ROWS = [2 * CHUNK_ROWS, CHUNK_ROWS + 1, CHUNK_ROWS - 1, 3]
VOCAB, WIDTH = 37, 12


def draw(rows: int, dtype: torch.dtype = torch.float32) -> list[torch.Tensor]:
    """Hidden rows, head weight, and targets of which a third are to be ignored."""
    generator = torch.Generator().manual_seed(rows)
    hidden = torch.randn(rows, WIDTH, dtype=dtype, generator=generator)
    weight = torch.randn(VOCAB, WIDTH, dtype=dtype, generator=generator)
    targets = torch.randint(VOCAB, (rows,), generator=generator)
    targets[::3] = IGNORE_INDEX
    return [hidden, weight, targets]


def plain(hidden: torch.Tensor, weight: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    return cross_entropy_sum(hidden @ weight.T, targets)


def with_gradients(
    loss_sum: LossSum, drawn: list[torch.Tensor], scale: float = 1.0
) -> tuple[torch.Tensor, ...]:
    """The loss, and the gradients of `scale` times it by hidden rows and weight."""
    *parameters, targets = drawn
    hidden, weight = (tensor.clone().requires_grad_() for tensor in parameters)
    value = loss_sum(hidden, weight, targets)
    return (value.detach(), *torch.autograd.grad(scale * value, (hidden, weight)))


def test_a_sum_over_the_valid_targets() -> None:
    logits = torch.log(torch.tensor([[0.5, 0.25, 0.25], [0.1, 0.1, 0.8], [0.2, 0.2, 0.6]]))
    targets = torch.tensor([1, IGNORE_INDEX, 2])
    expected = -math.log(0.25) - math.log(0.6)
    assert cross_entropy_sum(logits, targets).item() == pytest.approx(expected, rel=1e-6)
    with_batch = cross_entropy_sum(logits.view(1, 3, 3), targets.view(1, 3))
    assert with_batch.item() == pytest.approx(expected, rel=1e-6)


@pytest.mark.parametrize("loss_sum", [plain, chunked_cross_entropy_sum])
def test_all_targets_ignored_is_zero_with_zero_gradients(loss_sum: LossSum) -> None:
    hidden, weight, targets = draw(CHUNK_ROWS + 1)
    ignored = torch.full_like(targets, IGNORE_INDEX)
    assert not any(part.any() for part in with_gradients(loss_sum, [hidden, weight, ignored]))


def test_bf16_logits_give_an_fp32_loss_of_those_logits() -> None:
    hidden, weight, targets = draw(200)
    logits = (hidden @ weight.T).bfloat16()
    found = cross_entropy_sum(logits, targets)
    assert found.dtype == torch.float32
    assert found.item() == pytest.approx(cross_entropy_sum(logits.double(), targets).item(), 1e-6)
    assert found.bfloat16().item() != found.item()


def test_fp64_stays_fp64() -> None:
    drawn = draw(5, torch.float64)
    assert plain(*drawn).dtype == chunked_cross_entropy_sum(*drawn).dtype == torch.float64


@pytest.mark.parametrize("rows", ROWS)
@pytest.mark.parametrize(("dtype", "rtol"), [(torch.float32, 1e-6), (torch.float64, 1e-13)])
def test_chunked_is_plain_in_value_and_gradients(
    rows: int, dtype: torch.dtype, rtol: float
) -> None:
    drawn = draw(rows, dtype)
    found = with_gradients(chunked_cross_entropy_sum, drawn)
    for value, expected in zip(found, with_gradients(plain, drawn), strict=True):
        assert value.dtype == dtype
        assert (value - expected).norm() <= rtol * expected.norm()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_without_gradients_chunked_is_plain_too_and_computes_none(
    dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delattr(loss, "_ChunkedCrossEntropySum")
    drawn = draw(CHUNK_ROWS + 1, dtype)
    with torch.no_grad(), Largest() as largest:
        found = chunked_cross_entropy_sum(*drawn)
    assert found.dtype == torch.float32
    torch.testing.assert_close(found, plain(*drawn), rtol=1e-5, atol=0)
    assert largest.elements == CHUNK_ROWS * VOCAB


@pytest.mark.parametrize("with_gradient", [True, False])
def test_the_losses_of_many_chunks_do_not_round_one_after_another(with_gradient: bool) -> None:
    """Every token has the loss ln 8; added up chunk by chunk in fp32 they are off by 5e-6."""
    tokens = 1024 * CHUNK_ROWS
    with torch.set_grad_enabled(with_gradient):
        found = chunked_cross_entropy_sum(
            torch.zeros(tokens, 4), torch.ones(8, 4), torch.arange(tokens) % 8
        )
    assert found.item() == pytest.approx(tokens * math.log(8), rel=1e-6)


def test_losses_over_gpt2s_vocabulary_are_those_of_fp64() -> None:
    generator = torch.Generator().manual_seed(1)
    hidden = torch.randn(2 * CHUNK_ROWS, 16, generator=generator)
    weight = 0.1 * torch.randn(PADDED_VOCAB_SIZE, 16, generator=generator)
    drawn = [hidden, weight, torch.arange(2 * CHUNK_ROWS) * 97]
    exact = with_gradients(plain, [hidden.double(), weight.double(), drawn[2]])
    for loss_sum in (plain, chunked_cross_entropy_sum):
        for value, right in zip(with_gradients(loss_sum, drawn), exact, strict=True):
            assert (value.double() - right).norm() <= 1e-6 * right.norm()


def test_liger_kernel_takes_over_on_cuda_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its order of arguments is weight, hidden states, targets."""
    asked: list[dict[str, Any]] = []

    def fused(**options: Any) -> LossSum:
        asked.append(options)
        return lambda weight, hidden, targets: plain(hidden, weight, targets)

    package = ModuleType("liger_kernel.transformers")
    package.LigerFusedLinearCrossEntropyLoss = fused  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "liger_kernel", ModuleType("liger_kernel"))
    monkeypatch.setitem(sys.modules, "liger_kernel.transformers", package)
    monkeypatch.setattr(loss, "_liger_loss", loss._liger_loss.__wrapped__)
    drawn = draw(5)
    on_cpu = chunked_cross_entropy_sum(*drawn)
    assert asked == []
    monkeypatch.setattr(torch.Tensor, "is_cuda", True)
    assert chunked_cross_entropy_sum(*drawn) == plain(*drawn)
    torch.testing.assert_close(on_cpu, plain(*drawn))
    assert asked == [
        {"ignore_index": IGNORE_INDEX, "reduction": "sum", "accum_dtype": torch.float32}
    ]


def test_without_liger_kernel_cuda_gets_our_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "liger_kernel", None)
    assert loss._liger_loss.__wrapped__() is None


def test_chunked_gradients_are_those_of_finite_differences(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(loss, "CHUNK_ROWS", 3)
    hidden = torch.randn(7, 2, dtype=torch.float64, requires_grad=True)
    weight = torch.randn(5, 2, dtype=torch.float64, requires_grad=True)
    inputs = (hidden, weight, torch.tensor([0, IGNORE_INDEX, 2, 3, 4, IGNORE_INDEX, 1]))
    assert torch.autograd.gradcheck(chunked_cross_entropy_sum, inputs, atol=1e-6, rtol=1e-6)


@pytest.mark.parametrize("scale", [0.0, 1 / 3, -2.5])
def test_chunked_gradients_scale_with_what_comes_from_above(scale: float) -> None:
    drawn = draw(CHUNK_ROWS + 1, torch.float64)
    _, *found = with_gradients(chunked_cross_entropy_sum, drawn, scale)
    _, *expected = with_gradients(plain, drawn)
    for gradient, unscaled in zip(found, expected, strict=True):
        torch.testing.assert_close(gradient, scale * unscaled, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("block_rows", [loss.BLOCK_ROWS, 7])
def test_chunked_under_autocast_computes_in_bf16_and_sums_in_fp32(
    block_rows: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loss, "BLOCK_ROWS", block_rows)
    drawn = draw(2 * CHUNK_ROWS)
    with torch.autocast("cpu", torch.bfloat16):
        found = with_gradients(chunked_cross_entropy_sum, drawn)
        expected = with_gradients(plain, drawn)
    exact = with_gradients(plain, drawn)
    assert [value.dtype for value in found] == 3 * [torch.float32]
    assert found[0] != exact[0]
    for value, of_plain, of_fp32 in zip(found, expected, exact, strict=True):
        assert (value - of_plain).norm() <= 5e-3 * of_plain.norm()
        assert (value - of_fp32).norm() <= 2e-2 * of_fp32.norm()


def test_under_autocast_the_weight_is_cast_once_and_not_for_every_chunk() -> None:
    hidden, weight, targets = draw(4 * CHUNK_ROWS)
    with torch.autocast("cpu", torch.bfloat16), Casts(weight.numel()) as casts:
        chunked_cross_entropy_sum(hidden, weight, targets)
    assert casts.count == 1


class Casts(TorchDispatchMode):
    """How often a tensor of so many elements is cast to bf16."""

    def __init__(self, elements: int) -> None:
        super().__init__()
        self.elements = elements
        self.count = 0

    def __torch_dispatch__(
        self, function: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        made = function(*args, **(kwargs or {}))
        if function is torch.ops.aten._to_copy.default and made.dtype == torch.bfloat16:
            self.count += made.numel() == self.elements
        return made


def test_chunked_of_a_bf16_model_has_bf16_gradients_and_an_fp32_loss() -> None:
    drawn = draw(64 * CHUNK_ROWS, torch.bfloat16)
    value, *gradients = with_gradients(chunked_cross_entropy_sum, drawn)
    assert value.dtype == torch.float32
    assert [gradient.dtype for gradient in gradients] == 2 * [torch.bfloat16]
    doubled = [tensor.double() if tensor.is_floating_point() else tensor for tensor in drawn]
    for gradient, exact in zip(gradients, with_gradients(plain, doubled)[1:], strict=True):
        # As close as the last rounding allows: summed over 64 chunks in bf16 they are off by 8e-3.
        assert (gradient.double() - exact).norm() <= 4e-3 * exact.norm()


def test_a_confident_prediction_keeps_its_small_gradient_in_bf16() -> None:
    """p - 1 for p = 0.9975, which bf16 itself would round to 0.9961 before the subtraction."""
    hidden = torch.tensor([[3.0]], dtype=torch.bfloat16)
    weight = torch.tensor([[1.0], [-1.0]], dtype=torch.bfloat16)
    drawn = [hidden, weight, torch.tensor([0])]
    _, gradient, _ = with_gradients(chunked_cross_entropy_sum, drawn)
    assert gradient.item() == pytest.approx(-2 / (1 + math.exp(6)), rel=1e-2)


@pytest.mark.parametrize(
    ("loss_sum", "rows_at_a_time"),
    [(plain, 4 * CHUNK_ROWS), (chunked_cross_entropy_sum, CHUNK_ROWS)],
)
def test_chunked_never_makes_all_the_logits(loss_sum: LossSum, rows_at_a_time: int) -> None:
    drawn = draw(4 * CHUNK_ROWS)
    with Largest() as largest:
        with_gradients(loss_sum, drawn)
    assert largest.elements == max(rows_at_a_time * VOCAB, 4 * CHUNK_ROWS * WIDTH)
