"""The main job as a person starts it: resuming, changing engines, failing."""

import json
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import psutil
import pytest
import yaml

from tests import faulty
from tests.data.shard_files import write_llmc
from toolkit.engines.strategies import Strategy
from toolkit.launch.processes import ProcessError, launch
from toolkit.shipped import ROOT

pytestmark = pytest.mark.distributed

TRAIN = str(ROOT / "launch" / "train.py")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs")
    words = [(7 * i * i + 3 * i) % 500 for i in range(6000)]
    for split, tokens in (("train", words[:5000]), ("val", words[5000:])):
        (folder / split).mkdir()
        write_llmc(folder / split / "shard_000000.bin", tokens)
    run = {
        "model": {"n_layer": 2, "n_head": 2, "n_embd": 32, "block_size": 32, "vocab_size": 512},
        "data": {"train": str(folder / "train"), "val": str(folder / "val")},
        "batch": {"tokens_per_step": 512, "micro_batch_size": 1},
        "output_dir": str(folder / "runs"),
        "optimizer": {"lr": 1e-3, "warmup_steps": 2},
        "training": {"steps": 6, "eval_every": 3, "eval_sequences": 5, "checkpoint_every": 3},
    }
    run["model"]["dropout"] = 0.1  # type: ignore[index]
    (folder / "run.yaml").write_text(yaml.safe_dump(run))
    return folder


def train(
    folder: Path,
    strategy: Strategy,
    world_size: int,
    name: str,
    *overrides: str,
    script: str = TRAIN,
    fault: str = "",
) -> str:
    words = ["--config", str(folder / "run.yaml"), f"run_name={name}", *overrides]
    environment = {"FAULT": fault, "PYTHONPATH": str(ROOT)}
    return launch(strategy, world_size, [script, *words], timeout_s=120, environment=environment)


def metrics(folder: Path, name: str) -> list[dict[str, Any]]:
    lines = (folder / "runs" / name / "metrics.jsonl").read_text().splitlines()
    return [json.loads(line) for line in lines]


def curve(folder: Path, name: str) -> dict[tuple[str, int], tuple[float, ...]]:
    keys = ("loss", "grad_norm", "lr", "tokens")
    return {
        (record["kind"], record["step"]): tuple(record.get(key, 0.0) for key in keys)
        for record in metrics(folder, name)
    }


def summary(folder: Path, name: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((folder / "runs" / name / "summary.json").read_text())
    return found


def resume(folder: Path, name: str, *, from_run: str) -> None:
    """Set up a run that holds another's checkpoint of step 3 and its metrics, and nothing later."""
    run = folder / "runs" / name
    (run / "checkpoints").mkdir(parents=True)
    checkpoint = "checkpoints/step_00000003"
    shutil.copytree(folder / "runs" / from_run / checkpoint, run / checkpoint)
    shutil.copy(folder / "runs" / from_run / "metrics.jsonl", run)


@pytest.fixture(scope="module")
def straight(folder: Path) -> str:
    """A run of six steps under FSDP2, never interrupted."""
    return train(folder, "fsdp2", 2, "straight")


def test_the_console_has_one_line_per_step(straight: str) -> None:
    steps = [line for line in straight.splitlines() if line.startswith("step ")]
    assert [int(line.split("/")[0].split()[1]) for line in steps] == [1, 2, 3, 4, 5, 6]
    assert "backend gloo" in straight
    assert "512 tokens per step = 1 sequence x 32 tokens x 8 micro-steps x 2 ranks" in straight


def test_a_run_leaves_the_promised_files(folder: Path, straight: str) -> None:
    run = folder / "runs" / "straight"
    assert {path.name for path in run.iterdir()} == {
        "config.yaml",
        "launch.yaml",
        "environment.json",
        "metrics.jsonl",
        "summary.json",
        "last_start.json",
        "checkpoints",
    }
    launched = yaml.safe_load((run / "launch.yaml").read_text())
    assert launched["strategy"] == "fsdp2"
    assert launched["config_file"].endswith("configs/accelerate/fsdp2.yaml")
    found = summary(folder, "straight")
    assert (found["exit"], found["steps"], found["world_size"]) == (0, 6, 2)
    assert found["final_loss"] == metrics(folder, "straight")[-2]["loss"]


IN_ACCELERATES_WORDS = """
distributed_type: FSDP
num_processes: 2
mixed_precision: 'no'
main_process_port: 0
use_cpu: true
fsdp_config:
  fsdp_version: 2
  fsdp_auto_wrap_policy: TRANSFORMER_BASED_WRAP
  fsdp_transformer_layer_cls_to_wrap: GPT2Block
  fsdp_cpu_ram_efficient_loading: true
  fsdp_activation_checkpointing: true
parallelism_config:
  parallelism_config_dp_replicate_size: 1
  parallelism_config_dp_shard_size: 2
"""


def test_carrying_on_is_exact(folder: Path, straight: str) -> None:
    """Also by a launch file that puts in Accelerate's words what the run does by itself."""
    resume(folder, "again", from_run="straight")
    path = folder / "für zwei CPUs.yaml"
    path.write_text(IN_ACCELERATES_WORDS)
    command = [Path(sys.executable).with_name("toolkit"), "train", "--strategy", path]
    words = ["--config", folder / "run.yaml", "run_name=again", "seed=1", "seed=1337"]
    result = subprocess.run(
        [*map(str, (*command, *words)), "model.activation_checkpointing=true"],
        env={**os.environ, "HF_HOME": str(folder), "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    printed = result.stdout
    notes = [line.split()[1] for line in printed.splitlines() if line.startswith("note ")]
    assert notes == [
        "override",
        "fsdp_config.fsdp_transformer_layer_cls_to_wrap:",
        "fsdp_config.fsdp_cpu_ram_efficient_loading:",
        "parallelism_config:",
        "use_cpu:",
    ]
    assert "resuming from" in printed
    assert curve(folder, "again") == curve(folder, "straight")
    last = "checkpoints/step_00000006"
    for rank in (0, 1):
        again, straight_through = (
            (folder / "runs" / run / last / f"rank_{rank:05d}.safetensors").read_bytes()
            for run in ("again", "straight")
        )
        assert again == straight_through


@pytest.mark.parametrize(
    ("strategy", "world_size"),
    [
        ("zero3", 2),
        *(pytest.param(name, 2, marks=pytest.mark.long) for name in ("ddp", "zero1", "zero2")),
    ],
)
def test_another_engine_carries_on(
    folder: Path, straight: str, strategy: Strategy, world_size: int
) -> None:
    """The same ranks and so the same dropout: the curve may differ by rounding alone."""
    resume(folder, strategy, from_run="straight")
    train(folder, strategy, world_size, strategy)
    found, expected = curve(folder, strategy), curve(folder, "straight")
    assert found.keys() == expected.keys()
    for key, values in expected.items():
        assert found[key] == pytest.approx(values, rel=1e-5), key


@pytest.mark.long
@pytest.mark.timeout(600)
def test_a_run_that_changes_hands_at_every_step_is_the_same_run(folder: Path) -> None:
    """Three ranks hold shares of unequal size."""
    same = ("model.dropout=0", "batch.tokens_per_step=384", "training.checkpoint_every=1")
    hands: list[tuple[Strategy, int]] = [
        ("fsdp2", 3),
        ("zero3", 3),
        ("ddp", 2),
        ("zero1", 3),
        ("fsdp2", 4),
        ("zero2", 3),
    ]
    for step, (strategy, ranks) in enumerate(hands, start=1):
        train(folder, strategy, ranks, "hands", *same, f"training.stop_at={step}")
    train(folder, "ddp", 1, "alone", *same)
    found, expected = curve(folder, "hands"), curve(folder, "alone")
    trained = [key for key in expected if key[0] == "train"]
    assert [key for key in found if key[0] == "train"] == trained
    for key in trained:
        assert found[key] == pytest.approx(expected[key], rel=1e-5), key


def test_a_crash_ends_all_ranks_and_names_the_one(folder: Path) -> None:
    started = time.monotonic()
    with pytest.raises(ProcessError, match="put in by the test") as failure:
        train(folder, "ddp", 2, "crash", script=faulty.__file__, fault="step:1:3:raise")
    assert "rank 1, step 3: failed" in str(failure.value)
    assert "rank 0" not in str(failure.value)
    assert time.monotonic() - started < 60
    found = summary(folder, "crash")
    assert found["exit"] == 1
    assert found["reason"] == "rank 1, step 3: ValueError: put in by the test"
    assert not [
        p for p in psutil.process_iter(["cmdline"]) if "run_name=crash" in (p.info["cmdline"] or [])
    ]


def test_a_slip_in_the_launch_file_stops_the_job(folder: Path, tmp_path: Path) -> None:
    """Accelerate itself would ignore the key and run stage 2."""
    shipped = (ROOT / "configs" / "accelerate" / "zero3.yaml").read_text()
    mistyped = tmp_path / "mistyped.yaml"
    mistyped.write_text(shipped.replace("zero_stage: 3", "zero_stge: 3"))
    command = [Path(sys.executable).with_name("accelerate"), "launch", "--config_file", mistyped]
    result = subprocess.run(
        [*map(str, command), TRAIN, "--config", str(folder / "run.yaml")],
        env={**os.environ, "HF_HOME": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=90,
        check=False,
    )
    assert result.returncode == 1
    assert "unknown key 'deepspeed_config.zero_stge'" in result.stderr
    assert "did you mean 'deepspeed_config.zero_stage'?" in result.stderr
    assert result.stderr.count("did you mean") == 1
    assert "zero_stge" not in result.stdout


def test_toolkit_train_returns_the_workers_exit_code(folder: Path, tmp_path: Path) -> None:
    command = [Path(sys.executable).with_name("toolkit"), "train", "--strategy", "single"]
    words = [*map(str, command), "--config", str(folder / "run.yaml"), "run_name=single"]
    result = subprocess.run(
        [*words, "optimizer.lr=1.0e+3", "optimizer.grad_clip=0", "training.steps=60"],
        env={**os.environ, "HF_HOME": str(tmp_path), "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=90,
        check=False,
    )
    assert result.stdout.startswith("accelerate launch --config_file ")
    assert result.returncode == summary(folder, "single")["exit"] == 6
    assert "nothing was saved after this step" in result.stderr
