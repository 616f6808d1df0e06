"""What trackers are called with: Accelerate's own tracker of W&B, with a stub of the service."""

import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
from accelerate import Accelerator
from accelerate.tracking import LOGGER_TYPE_TO_CLASS

from toolkit.config import load_run_config
from toolkit.training.trackers import _NAME_KEYWORDS, start_trackers


class Service(ModuleType):
    """Stands in for the module `wandb`."""

    def __init__(self) -> None:
        super().__init__("wandb")
        self.opened: list[dict[str, Any]] = []
        self.values: dict[str, Any] = {}
        self.config = self

    def init(self, **words: Any) -> None:
        self.opened.append(words)

    def update(self, values: dict[str, Any], *, allow_val_change: bool) -> None:
        self.values |= values


def test_runs_share_a_project_and_have_their_own_names(
    run_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    service = Service()
    monkeypatch.setitem(sys.modules, "wandb", service)
    for overrides in (["run_name=first"], ["run_name=second", "training.tracker_project=mine"]):
        accelerator = SimpleNamespace(log_with=["wandb"], trackers=[])
        accelerator.init_trackers = Accelerator.init_trackers.__get__(accelerator)
        start_trackers(accelerator, load_run_config(run_file, overrides))
    assert service.opened == [
        {"project": "scaling-toolkit", "name": "first"},
        {"project": "mine", "name": "second"},
    ]
    assert service.values["run_name"] == "second"
    assert service.values["optimizer.lr"] == 1e-3
    assert service.values["optimizer.betas"] == "(0.9, 0.95)"


def test_names_are_given_to_trackers_that_there_are() -> None:
    assert _NAME_KEYWORDS.keys() <= LOGGER_TYPE_TO_CLASS.keys()
