from pathlib import Path

import pytest
import yaml

from tests.data.shard_files import write_llmc


@pytest.fixture(scope="module")
def run_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of some 15 steps a second, saved after every fifth."""
    folder = tmp_path_factory.mktemp("rehearsed")
    words = [(7 * i * i + 3 * i) % 500 for i in range(5000)]
    write_llmc(folder / "train" / "shard_000000.bin", words)
    run = {
        "model": {"n_layer": 2, "n_head": 2, "n_embd": 32, "block_size": 32, "vocab_size": 512},
        "data": {"train": str(folder / "train")},
        "batch": {"tokens_per_step": 512, "micro_batch_size": 1},
        "output_dir": str(folder / "runs"),
        "optimizer": {"lr": 1e-3, "warmup_steps": 2},
        "training": {"steps": 1000, "checkpoint_every": 5, "timeout_s": 8},
    }
    (folder / "run.yaml").write_text(yaml.safe_dump(run))
    return folder / "run.yaml"
