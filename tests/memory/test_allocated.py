"""The C library's account follows tensors."""

import pytest
import torch

from toolkit.memory import allocated as module
from toolkit.memory.allocated import allocated

CPU = torch.device("cpu")


def test_a_tensor_is_seen_to_come_and_go() -> None:
    before = allocated(CPU)
    if before is None:
        pytest.skip("this C library keeps no account of what it has handed out")
    tensor = torch.empty(10**7)
    during = allocated(CPU)
    assert during is not None
    assert tensor.nbytes <= during - before < tensor.nbytes + 2**20
    del tensor
    after = allocated(CPU)
    assert after is not None
    assert abs(after - before) < 2**20


def test_an_account_that_sees_no_tensors_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    module._sees_tensors.cache_clear()
    monkeypatch.setattr(module, "_in_use", lambda: 0)
    assert allocated(CPU) is None
    module._sees_tensors.cache_clear()
