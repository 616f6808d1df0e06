"""The real loop of every strategy on two processes: the estimate against the allocator."""

import json
from pathlib import Path

import pytest
import yaml

from tests.data.shard_files import write_llmc
from toolkit.engines.strategies import STRATEGIES, Strategy
from toolkit.launch.processes import launch
from toolkit.shipped import ROOT

pytestmark = pytest.mark.distributed

QUICK = ("fsdp2",)


@pytest.fixture
def run(tmp_path: Path) -> Path:
    words = [(7 * i * i + 3 * i) % 2000 for i in range(9000)]
    (tmp_path / "train").mkdir()
    write_llmc(tmp_path / "train" / "shard_000000.bin", words)
    run = {
        "model": {"n_layer": 3, "n_head": 4, "n_embd": 128, "block_size": 128, "vocab_size": 2048},
        "data": {"train": str(tmp_path / "train")},
        "batch": {"tokens_per_step": 2048, "micro_batch_size": 2},
        "precision": "bf16",
        "output_dir": str(tmp_path / "runs"),
        "optimizer": {"lr": 1e-3},
        "training": {"steps": 3, "checkpoint_every": "never"},
    }
    path = tmp_path / "run.yaml"
    path.write_text(yaml.safe_dump(run))
    return path


@pytest.mark.parametrize(
    "strategy",
    [s if s in QUICK else pytest.param(s, marks=pytest.mark.long) for s in STRATEGIES],
)
def test_the_estimate_is_what_the_loop_measures(run: Path, strategy: Strategy) -> None:
    ranks = {"single": 1, "hsdp": 4}.get(strategy, 2)
    script = [str(ROOT / "launch" / "train.py"), "--config", str(run)]
    printed = launch(strategy, ranks, script, timeout_s=120)
    summary = json.loads((run.parent / "runs" / "run" / "summary.json").read_text())
    measured = summary["peak_memory_bytes"]
    assert summary["estimated_peak_memory_bytes"] == pytest.approx(measured, rel=0.01)
    assert "memory     estimated" in printed
