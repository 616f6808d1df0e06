import os
from pathlib import Path
from typing import Any

import pytest

# Before anything imports distutils: torch's compiler needs the one that setuptools brings.
import setuptools  # noqa: F401
import yaml

from tests import samples
from tests.data.shard_files import write_llmc

# Read when torch is first imported: on models this small more threads only wait for each other.
os.environ.setdefault("OMP_NUM_THREADS", "1")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--rewrite-samples",
        action="store_true",
        help="Replace samples of the documents that are no longer what is printed.",
    )


def pytest_configure(config: pytest.Config) -> None:
    samples.rewrites_samples = config.getoption("--rewrite-samples")


@pytest.fixture
def run_file(tmp_path: Path) -> Path:
    """A run of 512 tokens a step on a model small enough for many starts, and its shards."""
    words = [(7 * i * i + 3 * i) % 500 for i in range(3000)]
    write_llmc(tmp_path / "train" / "shard_000000.bin", words[:2500])
    write_llmc(tmp_path / "val" / "shard_000000.bin", words[2500:])
    run: dict[str, Any] = {
        "model": {"n_layer": 1, "n_head": 2, "n_embd": 16, "block_size": 32, "vocab_size": 512},
        "data": {"train": str(tmp_path / "train"), "val": str(tmp_path / "val")},
        "batch": {"tokens_per_step": 512, "micro_batch_size": 4},
        "output_dir": str(tmp_path / "runs"),
        "optimizer": {"lr": 1e-3, "warmup_steps": 2},
        "training": {"steps": 4, "checkpoint_every": "never"},
    }
    path = tmp_path / "tiny.yaml"
    path.write_text(yaml.safe_dump(run))
    return path


@pytest.fixture
def fresh_accelerate() -> None:
    """Forget the engine that an earlier test of this process built."""
    from toolkit.engines.accelerate_internals import forget_engine

    forget_engine()
