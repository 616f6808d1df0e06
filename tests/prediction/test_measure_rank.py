"""What is timed of a machine's links is what engines call."""

from collections.abc import Iterator
from typing import Any

import pytest
import torch
import torch.distributed as dist

from toolkit.engines.torch_internals import TorchDispatchMode, fake_store
from toolkit.engines.traffic import EngineKind
from toolkit.prediction.measure_rank import build_call

SIZE = 1200


class Operators(TorchDispatchMode):
    """Keeps the collective operators that are called, with the elements of their tensors."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[str] = []

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if func.namespace in ("c10d", "scaling_toolkit"):
            self.seen.append(func.name())
        return func(*args, **(kwargs or {}))


@pytest.fixture(params=[2, 3])
def ranks(request: pytest.FixtureRequest) -> Iterator[int]:
    dist.init_process_group("fake", rank=0, world_size=request.param, store=fake_store())
    yield request.param
    dist.destroy_process_group()


@pytest.mark.parametrize(
    ("kind", "operator"),
    [
        ("all_reduce", "c10d::allreduce_"),
        ("reduce_scatter", "c10d::_reduce_scatter_base_"),
        ("all_to_all", "scaling_toolkit::exchange"),
        ("all_gather", "c10d::_allgather_base_"),
    ],
)
def test_each_kind_is_timed_by_the_call_that_engines_make(
    ranks: int, kind: EngineKind, operator: str
) -> None:
    call = build_call(kind, SIZE, torch.device("cpu"))
    with Operators() as operators:
        call()
    assert operators.seen == [operator]
