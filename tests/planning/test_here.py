"""The machine at hand: by its profile, without a search for what was not measured."""

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from tests.prediction.test_calibration import HERE
from tests.prediction.test_calibration import measured as measured  # a fixture
from toolkit.cli import app
from toolkit.config import RunConfig, load_run_config
from toolkit.errors import UsageError
from toolkit.memory.largest import StepTokens
from toolkit.planning import here as here_module
from toolkit.planning.answer import Answer, changes, find_answer
from toolkit.planning.candidates import Search
from toolkit.planning.here import cluster_here
from toolkit.prediction.machine_profile import MachineProfile

SMALL = ["n_layer=2", "n_head=2", "n_embd=32", "block_size=32", "vocab_size=256"]
OVERRIDES = [f"model.{each}" for each in SMALL] + ["batch.tokens_per_step=256"]


def run_of() -> RunConfig:
    return load_run_config(None, OVERRIDES)


def answer(profile: MachineProfile) -> Answer:
    search = Search(
        run_of(), StepTokens(wanted=256, is_fixed=True), ("ddp", "fsdp2", "zero2", "zero3")
    )
    return find_answer(search, cluster_here(HERE, profile))


def test_a_measured_machine_has_numbers_and_nothing_to_change(measured: MachineProfile) -> None:
    found = answer(measured)
    assert found.best is not None
    assert found.best.is_calibrated
    assert found.best.settings.device == "cpu"
    assert found.best.as_json()["mfu"] > 0
    assert changes(found) == []
    assert {row.settings.strategy for row in found.rows} == {"ddp", "fsdp2", "zero2", "zero3"}


def test_strategies_whose_engine_was_not_measured_are_named(
    measured: MachineProfile, monkeypatch: pytest.MonkeyPatch
) -> None:
    environment = measured.environment.model_copy(update={"versions": {"torch": "2.12.0"}})
    elsewhere = measured.model_copy(update={"environment": environment})
    monkeypatch.setattr("toolkit.prediction.calibration.find_profile", lambda *_: elsewhere)
    with pytest.raises(UsageError, match="what ddp computes itself is not known"):
        answer(elsewhere)


def test_the_command_plans_for_it(
    measured: MachineProfile, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(here_module, "find_here", lambda ranks: (HERE, measured))
    words = ["plan", "--here", "--gpus", "2", "--strategies", "ddp,fsdp2", *OVERRIDES]
    document = json.loads(CliRunner().invoke(app, [*words, "--json"]).stdout)
    assert document["best"]["step_s"] == document["best"]["step_s_range"][0] > 0
    assert "2 ranks on this machine, AMD EPYC" in CliRunner().invoke(app, words).stdout


def test_what_was_measured_is_kept_for_the_next_question(
    tmp_path: Path, measured: MachineProfile, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(here_module, "measure_machine", lambda ranks: measured)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "other"))
    assert here_module.measure_here(2) == measured
    assert len(list((tmp_path / "other").rglob("*_2_ranks.json"))) == 1
