"""What trackers are called with, W&B's on a stub of the service; and TensorBoard's own files."""

import json
import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
from accelerate import Accelerator
from accelerate.tracking import LOGGER_TYPE_TO_CLASS
from accelerate.utils import LoggerType

from toolkit.config import load_run_config
from toolkit.errors import NonFiniteError
from toolkit.training import worker
from toolkit.training.callback import Callback, Progress
from toolkit.training.stop import Stopped
from toolkit.training.trackers import (
    _FOLDER_KEYWORDS,
    _NAME_KEYWORDS,
    _TAKE_TEXT,
    log_sample,
    tracked,
)


class Service(ModuleType):
    """Stands in for the module `wandb`."""

    def __init__(self) -> None:
        super().__init__("wandb")
        self.opened: list[dict[str, Any]] = []
        self.values: dict[str, Any] = {}
        self.finished = 0
        self.config = self

    def init(self, **words: Any) -> "Service":
        self.opened.append(words)
        return self

    def log(self, values: dict[str, Any], **words: Any) -> None:
        self.values |= values

    def finish(self) -> None:
        self.finished += 1

    def update(self, values: dict[str, Any], *, allow_val_change: bool) -> None:
        self.values |= values


def test_runs_share_a_project_and_have_their_own_names(
    run_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    service = Service()
    monkeypatch.setitem(sys.modules, "wandb", service)
    for overrides in (["run_name=first"], ["run_name=second", "training.tracker_project=mine"]):
        accelerator = SimpleNamespace(log_with=["wandb"], trackers=[])
        accelerator.init_trackers = Accelerator.init_trackers.__get__(accelerator)
        config = load_run_config(run_file, ["training.trackers=[wandb]", *overrides])
        with tracked(accelerator, config, tmp_path):
            assert service.finished == len(service.opened) - 1
    assert service.opened == [
        {"project": "scaling-toolkit", "name": "first", "dir": str(tmp_path)},
        {"project": "mine", "name": "second", "dir": str(tmp_path)},
    ]
    assert service.values["run_name"] == "second"
    assert service.values["optimizer.lr"] == 1e-3
    assert service.values["optimizer.betas"] == "(0.9, 0.95)"


class Ends(Callback):
    """Ends the run after its first step."""

    def __init__(self, ending: Exception) -> None:
        self.ending = ending

    def after_step(self, progress: Progress, numbers: Sequence[float]) -> None:
        raise self.ending


@pytest.mark.usefixtures("fresh_accelerate", "unlaunched")
@pytest.mark.parametrize(
    ("ending", "code"), [(Stopped(signal.SIGTERM), 75), (NonFiniteError("the loss is nan"), 6)]
)
def test_they_are_finished_however_the_run_ends(
    run_file: Path, monkeypatch: pytest.MonkeyPatch, ending: Exception, code: int
) -> None:
    service = Service()
    monkeypatch.setitem(sys.modules, "wandb", service)
    monkeypatch.setattr("accelerate.tracking._available_trackers", [LoggerType.WANDB])
    words = ["--config", str(run_file), "training.trackers=[wandb]"]
    assert worker.main(words, [Ends(ending)]) == code
    assert service.values["train/step"] == 1
    assert service.finished == 1


@pytest.mark.usefixtures("fresh_accelerate", "unlaunched")
def test_tensorboard_reads_back_what_training_wrote(run_file: Path) -> None:
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
    from tensorboard.util.tensor_util import make_ndarray

    overrides = ["training.trackers=[tensorboard]", "training.eval_every=2"]
    overrides += ["training.sample_tokens=4", "model.vocab_size=50257"]
    assert worker.main(["--config", str(run_file), "run_name=seen", *overrides]) == 0
    (events,) = (run_file.parent / "runs" / "seen").rglob("events.out.tfevents.*.0")
    read = EventAccumulator(str(events.parent)).Reload()
    folder = run_file.parent / "runs" / "seen"
    records = [json.loads(line) for line in (folder / "metrics.jsonl").open()]
    for kind, key in (("train", "loss"), ("train", "grad_norm"), ("eval", "loss")):
        own = {record["step"]: record[key] for record in records if record["kind"] == kind}
        shown = {event.step: event.value for event in read.Scalars(f"{kind}/{key}")}
        assert shown == pytest.approx(own, rel=1e-6)
        assert own
    texts = {
        event.step: make_ndarray(event.tensor_proto).item().decode()
        for event in read.Tensors("sample/text_summary")
    }
    assert texts == {r["step"]: r["text"] for r in records if r["kind"] == "sample"}
    assert list(texts) == [2, 4]


def test_names_are_given_to_trackers_that_there_are() -> None:
    named = {*_NAME_KEYWORDS, *_FOLDER_KEYWORDS, *_TAKE_TEXT}
    assert named <= LOGGER_TYPE_TO_CLASS.keys()


def test_a_sample_is_shown_as_text_where_a_tracker_shows_text() -> None:
    shown: list[Any] = []
    trackers = []
    for name in ("tensorboard", "wandb", "mlflow"):
        # Accelerate's own methods, on a stub of what they write to.
        kind = LOGGER_TYPE_TO_CLASS[name]
        tracker = kind.__new__(kind)
        tracker.log = lambda values, step, name=name: shown.append((name, values, step))  # type: ignore[method-assign]
        if name == "wandb":
            tracker.log_table = lambda *words, name=name, **more: shown.append((name, words, more))  # type: ignore[method-assign]
        trackers.append(tracker)
    log_sample(SimpleNamespace(trackers=trackers), "To be", step=7)
    table = {"columns": ["text"], "data": [["To be"]], "step": 7}
    assert shown == [("tensorboard", {"sample": "To be"}, 7), ("wandb", ("sample",), table)]
