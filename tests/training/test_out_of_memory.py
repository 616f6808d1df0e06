"""Too little memory, expected before a run and met in it."""

from pathlib import Path

import pytest
import torch
import torch.distributed as dist

from tests.training.runs import Failure, summary
from toolkit.errors import OutOfMemoryError
from toolkit.program.step import estimate_peak
from toolkit.training import memory, worker
from toolkit.training.memory import naming_out_of_memory
from toolkit.verify.cases import TINY, Case

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
        # In the step, where the GPU's allocator is not who was asked.
        (
            RuntimeError("CUDA error: out of memory\nCUDA kernel errors might be reported later"),
            "CUDA error: out of memory",
        ),
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


@pytest.mark.parametrize(
    "error",
    [
        RuntimeError("HIP error: out of memory"),
        RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"),
        dist.DistBackendError(
            "NCCL error in: NCCLUtils.cpp:93, unhandled cuda error, NCCL version 2.27.5\n"
            "ncclUnhandledCudaError: Call to CUDA function failed.\n"
            "Last error:\nCuda failure 2 'out of memory'"
        ),
    ],
)
def test_memory_is_out_past_the_gpus_allocator_as_well(error: RuntimeError) -> None:
    with pytest.raises(OutOfMemoryError, match="out of memory on rank 3: "):
        raise_within(error)


def test_another_error_stays_what_it_is() -> None:
    error = RuntimeError("CUDA error: an illegal memory access was encountered")
    with pytest.raises(RuntimeError, match="illegal memory access"):
        raise_within(error)


def raise_within(error: RuntimeError) -> None:
    case = Case(accumulation="replicated", grad_accum_steps=1)
    settings = case.step_settings(0, TINY, "single", world_size=1, replicas=1)
    with naming_out_of_memory(3, estimate_peak(settings)):
        raise error
