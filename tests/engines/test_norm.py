"""The gradient's norm against fp64, at GPT-2's sizes and in every layout."""

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from toolkit.engines.norm import ROW, ROWS_AT_ONCE, global_norm
from toolkit.model.sizes import preset_sizes

GPT2 = preset_sizes("gpt2")
RELATIVE = 1e-6


def exact(*tensors: torch.Tensor) -> float:
    return math.sqrt(sum(tensor.double().square().sum().item() for tensor in tensors))


def uneven(rows: int, columns: int) -> torch.Tensor:
    """Rows whose sizes differ by orders of magnitude, as an embedding's gradient has them."""
    generator = torch.Generator().manual_seed(1)
    size = torch.rand(rows, 1, generator=generator) ** 6
    return size * torch.randn(rows, columns, generator=generator)


@pytest.fixture(scope="module")
def embedding() -> torch.Tensor:
    return uneven(GPT2.vocab_size, GPT2.n_embd)


def test_an_embedding_of_gpt2s_size(embedding: torch.Tensor) -> None:
    right = exact(embedding)
    assert global_norm([embedding]).item() == pytest.approx(right, rel=RELATIVE)
    equal = torch.full_like(embedding, 0.1)
    assert global_norm([equal]).item() == pytest.approx(exact(equal), rel=RELATIVE)


SMALL = uneven(3 * ROW + 7, 96)
LAYOUTS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "contiguous": lambda t: t,
    "flat": lambda t: t.view(-1),
    "transposed": lambda t: t.t(),
    "every other column": lambda t: t[:, ::2],
    "every third element": lambda t: t.view(-1)[::3],
    "permuted": lambda t: t[:3072].view(4, 24, 32, 96).permute(3, 1, 0, 2),
    "expanded": lambda t: t[:1].expand(50, -1),
    "one row": lambda t: t.view(-1)[:ROW],
    "one less": lambda t: t.view(-1)[: ROW - 1],
    "one more": lambda t: t.view(-1)[: ROW + 1],
    "scalar": lambda t: t[0, 0],
    "empty": lambda t: t[:0],
    "empty columns": lambda t: t.t()[:, :0],
}


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize(
    "dtype", [torch.float32, torch.bfloat16, torch.float16, torch.float64], ids=str
)
def test_every_layout_and_dtype(layout: str, dtype: torch.dtype) -> None:
    tensor = LAYOUTS[layout](SMALL.to(dtype))
    found = global_norm([tensor])
    assert (found.dtype, found.shape) == (torch.float64, ())
    assert found.item() == pytest.approx(exact(tensor), rel=RELATIVE)


def test_many_tensors_are_one_vector() -> None:
    parts = [*SMALL.split(100), torch.empty(0), torch.tensor(3.0), torch.ones(7).bfloat16()]
    assert global_norm(parts).item() == pytest.approx(exact(*parts), rel=RELATIVE)


@pytest.mark.parametrize("size", [3e38, 1e30, 1e-20, 1e-30, 1e-44, 0.0])
def test_squares_beyond_fp32_are_added_all_the_same(size: float) -> None:
    tensor = torch.full((3 * ROW + 1,), size)
    assert global_norm([tensor]).item() == pytest.approx(exact(tensor), rel=RELATIVE, abs=0)


@pytest.mark.parametrize("value", [math.inf, -math.inf, math.nan])
@pytest.mark.parametrize("place", [0, 5 * ROW, -1])
def test_what_is_not_finite_stays_so(value: float, place: int) -> None:
    tensor = torch.ones(9 * ROW + 5)
    tensor[place] = value
    assert global_norm([torch.ones(3), tensor]).item() == pytest.approx(abs(value), nan_ok=True)


@pytest.mark.parametrize(("size", "sums"), [(1.0, 1), (1e30, 2)])
def test_parts_on_other_ranks_are_added_and_all_ranks_add_equally_often(
    size: float, sums: int
) -> None:
    """The second part is on a rank of its own, which holds the same."""
    part = size * SMALL[:500]
    totals: list[torch.Tensor] = []

    def double(total: torch.Tensor) -> torch.Tensor:
        totals.append(total)
        return 2 * total

    norm = global_norm([part], double).item()
    assert norm == pytest.approx(2**0.5 * exact(part), rel=RELATIVE)
    assert len(totals) == sums


class LargestCopy(TorchDispatchMode):
    """The most elements of a tensor made inside the block that shares no memory with another."""

    def __init__(self, of: torch.Tensor) -> None:
        super().__init__()
        self.known = of.untyped_storage().data_ptr()
        self.elements = 0

    def __torch_dispatch__(
        self, function: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        made = function(*args, **(kwargs or {}))
        if isinstance(made, torch.Tensor) and made.untyped_storage().data_ptr() != self.known:
            self.elements = max(self.elements, made.numel())
        return made


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_no_tensor_is_copied_whole(embedding: torch.Tensor, dtype: torch.dtype) -> None:
    tensor = embedding.to(dtype)
    with LargestCopy(tensor) as copy:
        global_norm([tensor, tensor.t()[:8]])
    assert 0 < copy.elements < tensor.numel() // 500
    # What a narrower dtype is widened in is no tensor that is seen here.
    assert tensor.numel() > 8 * ROWS_AT_ONCE * ROW
