import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml

from tests.checkpoint.job import ROOT, STEPS, Job
from tests.data.shard_files import write_llmc
from toolkit.checkpoint.store import CheckpointStore
from toolkit.training.exchange import import_weights

PADDED = ["model.n_layer=2", "model.vocab_size=50304"]


@pytest.fixture
def store(tmp_path: Path) -> CheckpointStore:
    return CheckpointStore(tmp_path / "checkpoints")


@pytest.fixture(scope="package")
def theirs(tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, Path]:
    """A model of transformers with GPT-2's vocabulary, and the folder that it is saved in."""
    from transformers import GPT2Config, GPT2LMHeadModel

    torch.manual_seed(1)
    config = GPT2Config(n_layer=2, n_head=2, n_embd=16, vocab_size=50_257, n_positions=32)
    model = GPT2LMHeadModel(config).eval()
    for name, parameter in model.named_parameters():
        if name.endswith("bias"):
            torch.nn.init.normal_(parameter, std=0.1)
    folder = tmp_path_factory.mktemp("theirs")
    model.save_pretrained(folder)
    return model, folder


@pytest.fixture
def imported(run_file: Path, theirs: tuple[Any, Path]) -> Path:
    """A run that starts from their weights, with GPT-2's vocabulary padded."""
    checkpoint = import_weights(theirs[1], run_file, PADDED, trust=False)
    return checkpoint.parents[1]


@pytest.fixture(scope="package")
def job(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Job]:
    folder = tmp_path_factory.mktemp("crashes")
    # 640 tokens are 19 sequences: 6 steps of 4 go through them more than once.
    write_llmc(
        folder / "train" / "shard_000000.bin", [(7 * i * i + 3 * i) % 500 for i in range(640)]
    )
    run = {
        "model": {"n_layer": 1, "n_head": 2, "n_embd": 16, "block_size": 32, "vocab_size": 512},
        "data": {"train": str(folder / "train")},
        "batch": {"tokens_per_step": 128, "micro_batch_size": 2},
        "output_dir": str(folder / "runs"),
        "optimizer": {"lr": 1e-3, "warmup_steps": 2},
        "training": {"steps": STEPS, "checkpoint_every": 2, "keep_last": 2},
    }
    run["model"]["dropout"] = 0.1  # type: ignore[index]
    (folder / "run.yaml").write_text(yaml.safe_dump(run))
    command = [sys.executable, "-m", "tests.checkpoint.forks"]
    settings = {"OMP_NUM_THREADS": "1", "DS_ACCELERATOR": "cpu", "PYTHONPATH": str(ROOT)}
    environment = {**os.environ, **settings}
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment, cwd=ROOT
    ) as server:
        yield Job(folder, server)
        assert server.stdin is not None
        server.stdin.close()


@pytest.fixture(scope="package")
def straight(job: Job) -> str:
    assert job.start("straight") == 0, job.log("straight")
    assert job.steps("straight") == [4, 6]
    return "straight"
