"""How the engine of a case is built, before any engine sees the model."""

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

from toolkit.engines.launched import read_launch
from toolkit.verify import worker
from toolkit.verify.cases import TINY, Case


def test_the_model_is_on_its_device_before_an_optimizer_is_built_on_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """ZeRO copies what the optimizer holds at that time."""
    found: list[torch.device] = []

    def build_optimizer(model: nn.Module, config: Any) -> None:
        found.extend({parameter.device for parameter in model.parameters()})
        raise InterruptedError

    state = SimpleNamespace(device=torch.device("meta"))
    monkeypatch.setattr(worker, "PartialState", lambda: state)
    monkeypatch.setattr(worker, "build_optimizer", build_optimizer)
    case = Case(accumulation="replicated", grad_accum_steps=1)
    with pytest.raises(InterruptedError):
        worker.build_case(case, TINY, read_launch({}))
    assert found == [torch.device("meta")]
