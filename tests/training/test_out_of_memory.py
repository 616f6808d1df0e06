"""Too little memory, expected before a run and met in it."""

from pathlib import Path

import pytest
import torch

from tests.training.runs import Failure, summary
from toolkit.training import memory, worker

pytestmark = pytest.mark.usefixtures("fresh_accelerate", "unlaunched")


def test_an_estimate_above_the_device_is_printed_before_the_first_step(
    capsys: pytest.CaptureFixture[str], run_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(memory, "available_memory", lambda device: 2**20)
    assert worker.main(["--config", str(run_file), "training.steps=2"]) == 0
    printed = capsys.readouterr().out
    assert "exceeds the 1 MiB there are: " in printed
    assert printed.index("warning: the estimate of") < printed.index("step     1/2")
    assert summary(run_file)["estimated_peak_memory_bytes"] > 2**20
    monkeypatch.setattr(memory, "available_memory", lambda device: 2**40)
    assert worker.main(["--config", str(run_file), "run_name=fits", "training.steps=2"]) == 0
    assert "warning" not in capsys.readouterr().out


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (torch.OutOfMemoryError("Tried 2 GiB. GPU 0 has 1.\nMore"), "Tried 2 GiB. GPU 0 has 1"),
        (
            RuntimeError("DefaultCPUAllocator: can't allocate memory: (Cannot allocate memory)"),
            "DefaultCPUAllocator: can't allocate memory: (Cannot allocate memory)",
        ),
        (MemoryError(), "the allocator gave no reason"),
    ],
)
def test_out_of_memory_names_what_to_lower(
    capsys: pytest.CaptureFixture[str],
    run_file: Path,
    error: Exception,
    reason: str,
) -> None:
    assert worker.main(["--config", str(run_file)], [Failure(error)]) == 5
    sentence = capsys.readouterr().err
    assert f"out of memory on rank 0: {reason}; estimated " in sentence
    assert "lower batch.micro_batch_size" in sentence
    assert "Traceback" not in sentence
    assert summary(run_file)["exit"] == 5
