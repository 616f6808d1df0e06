"""`plan --explain` on a run's folder: measured parts, and a prediction only where there is one."""

import json
from pathlib import Path

import pytest
import yaml

from tests.prediction.test_calibration import HERE, measured  # noqa: F401
from toolkit.errors import UsageError
from toolkit.prediction.machine_profile import MachineProfile
from toolkit.runs.explain import explain

CONFIG = {
    "run_name": "explained",
    "accumulation": "sharded",
    "data": {"train": "data", "seq_len": 32},
    "model": {"n_layer": 2, "n_head": 2, "n_embd": 64, "vocab_size": 256, "block_size": 32},
    "batch": {"tokens_per_step": 192, "micro_batch_size": 1},
}


@pytest.fixture
def run(tmp_path: Path) -> Path:
    folder = tmp_path / "explained"
    folder.mkdir()
    (folder / "config.yaml").write_text(yaml.safe_dump(CONFIG))
    launch = {"strategy": "zero2", "world_size": 2, "replicas": 1}
    (folder / "launch.yaml").write_text(yaml.safe_dump(launch))
    environment = {
        "devices": {"type": "cpu", "names": [HERE.device], "ranks": 2},
        "packages": {"torch": HERE.torch},
    }
    (folder / "environment.json").write_text(json.dumps(environment))
    parts = {"passes": 0.5, "optimizer": 0.25, "waiting": 0.125, "loop": 0.125}
    summary = {"exit": 0, "reason": "done", "step_s": 1.0, "step_parts_s": parts}
    (folder / "summary.json").write_text(json.dumps(summary))
    return folder


def test_measured_stands_beside_predicted(run: Path, measured: MachineProfile) -> None:  # noqa: F811
    first, *table = explain(run)
    assert first == "zero2 sharded, predicted by what was measured on AMD EPYC, torch 2.13.0"
    rows = {line[:22].strip(): line.split()[-2:] for line in table}
    assert rows["both passes"][1] == "500.0"
    assert rows["the loop"] == ["-", "125.0"]
    step, unexplained = (float(rows[name][i]) for name, i in (("step", 0), ("unexplained", 1)))
    assert step + unexplained == pytest.approx(1000.0, abs=0.11)


def test_without_a_calibration_nothing_is_predicted(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "empty"))
    first, *table = explain(run)
    assert "not predicted: no calibration covers 2 ranks on AMD EPYC" in first
    assert table[-1].split() == ["step", "-", "1,000.0"]


def test_a_run_that_has_not_trained_is_refused(run: Path) -> None:
    (run / "summary.json").unlink()
    with pytest.raises(UsageError, match="no finished start"):
        explain(run)
