"""What a run settles before it begins, where its memory is to decide."""

from dataclasses import replace
from pathlib import Path

import pytest

from tests.prediction.test_profiled import machine
from toolkit.config import RunConfig, load_run_config
from toolkit.engines.launched import read_launch
from toolkit.engines.mixture import AUTO, ROOT, Mixture
from toolkit.engines.strategies import Strategy
from toolkit.errors import UsageError
from toolkit.memory.hardware import find_gpu
from toolkit.prediction.calibration import keep_profile
from toolkit.program.settings import settings_of_run
from toolkit.training import budget
from toolkit.training.budget import spend_budget

UNITS = (ROOT, *range(12))


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No machine was measured."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


def config(*overrides: str) -> RunConfig:
    batch = ["batch.tokens_per_step=65536", "batch.micro_batch_size=2"]
    return load_run_config(None, ["model.preset=gpt2", "precision=bf16", *batch, *overrides])


def settled(
    run: RunConfig, strategy: Strategy = "fsdp2", world_size: int = 8
) -> tuple[RunConfig, str]:
    launched = replace(read_launch({}), strategy=strategy, world_size=world_size)
    found, [sentence] = spend_budget(run, launched)
    return found, sentence


def test_auto_is_a_value_of_the_key_and_written_as_it_was(tmp_path: Path) -> None:
    assert config("accumulation=auto").accumulation == AUTO
    assert config("accumulation=auto").model_dump(mode="json")["accumulation"] == "auto"
    with pytest.raises(UsageError, match="'auto' or"):
        config("accumulation=automatic")
    with pytest.raises(UsageError, match="auto depends on the device"):
        settings_of_run(config("accumulation=auto"), "fsdp2", world_size=8)


def test_on_a_host_with_memory_enough_all_is_held_and_the_sentence_has_no_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(budget, "_device", lambda: (None, lambda peak: True))
    found, sentence = settled(config("accumulation=auto"))
    assert found.accumulation == Mixture(hold=UNITS, keep=UNITS)
    assert sentence.startswith("accumulation: auto is hold root, 0, 1")
    assert "at its peak (sharded " in sentence
    assert "not predicted: no calibration covers" in sentence
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "8")
    assert "toolkit plan --here --gpus 8 measures it" in settled(config("accumulation=auto"))[1]


def test_on_a_measured_cpu_the_time_of_a_step_is_predicted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(budget, "_device", lambda: (None, lambda peak: True))
    monkeypatch.setattr(budget, "cpu_name", lambda: "AMD EPYC")
    monkeypatch.setattr(budget, "version", lambda package: "2.13.0+cpu")
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "2")
    found = machine(1.0)
    versions = {"torch": "2.13.0+cpu"}
    environment = found.environment.model_copy(update={"cpu": "AMD EPYC", "versions": versions})
    keep_profile(found.model_copy(update={"environment": environment}))
    for strategy in ("fsdp2", "ddp", "zero2"):
        run = config("accumulation=auto", "precision=fp32")
        assert " ms predicted per step" in settled(run, strategy, world_size=2)[1]
    _, in_bf16 = settled(config("accumulation=auto"), world_size=2)
    assert "not predicted: AMD EPYC, torch 2.13.0 was measured in fp32, not bf16" in in_bf16


def test_on_a_known_gpu_the_time_of_a_step_is_predicted(monkeypatch: pytest.MonkeyPatch) -> None:
    gpu = find_gpu("A100-80")
    monkeypatch.setattr(budget, "_device", lambda: (gpu, gpu.holds))
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "8")
    _, sentence = settled(config("accumulation=auto"))
    assert "ms predicted per step (sharded " in sentence
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "4")
    assert "not predicted" in settled(config("accumulation=auto"))[1]


def test_where_nothing_fits_it_is_sharded_and_other_strategies_choose_a_mode(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(budget, "_device", lambda: (None, lambda peak: False))
    assert settled(config("accumulation=auto"))[0].accumulation == "sharded"
    monkeypatch.setattr(budget, "_device", lambda: (None, lambda peak: True))
    assert settled(config("accumulation=auto"), "ddp")[0].accumulation == "replicated"


def test_a_stated_budget_is_described_alike_and_a_mode_is_left_alone() -> None:
    found, sentence = settled(config("accumulation={hold: 100MiB}"))
    assert isinstance(found.accumulation, Mixture)
    assert "accumulation: hold 100MiB is keep" in sentence
    assert spend_budget(config("accumulation=sharded"), read_launch({})) == (
        config("accumulation=sharded"),
        [],
    )
