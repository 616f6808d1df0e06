"""What only a GPU can show; skipped, with the reason, where there is none."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from toolkit.engines.norm import global_norm
from toolkit.engines.strategies import Precision, Strategy
from toolkit.shipped import ROOT
from toolkit.verify.cases import TINY, Case
from toolkit.verify.run import verify_launch
from toolkit.verify.verdict import Launch

GPUS = torch.cuda.device_count()
pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device here"),
]


def launches() -> list[Launch]:
    several: tuple[Strategy, ...] = ("ddp", "fsdp2", "zero1", "zero2", "zero3")
    return [Launch("single", 1), *(Launch(strategy, 2) for strategy in several)]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_norm_is_that_of_fp64(dtype: torch.dtype) -> None:
    gradient = torch.randn(50_304, 768, device="cuda").to(dtype)
    assert global_norm([gradient]) == pytest.approx(gradient.double().norm().item(), rel=1e-6)


@pytest.mark.parametrize("launch", launches(), ids=lambda launch: launch.strategy)
@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_updates_are_the_exact_ones_over_nccl(launch: Launch, precision: Precision) -> None:
    if launch.world_size > GPUS:
        pytest.skip(f"{launch.world_size} ranks need as many GPUs, and there are {GPUS}")
    case = Case(accumulation="replicated", grad_accum_steps=4, precision=precision)
    report = verify_launch(launch, [case], TINY, timeout_s=280.0)
    assert [verdict.problems for verdict in report.verdicts] == [[]]


@pytest.mark.parametrize("precision", ["fp32", "bf16", "fp16"])
def test_a_run_trains_and_holds_what_was_estimated(run_file: Path, precision: Precision) -> None:
    command = [sys.executable, "-m", "toolkit", "train", "--strategy", "single"]
    command += ["--config", str(run_file), f"precision={precision}", "training.steps=5"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=250)
    assert done.returncode == 0, done.stderr
    folder = run_file.parent / "runs" / run_file.stem
    summary = json.loads((folder / "summary.json").read_text())
    assert summary["steps"] == 5
    assert summary["final_loss"] < 7
    # Kernels keep workspaces beside so small a model's tensors.
    assert summary["peak_memory_bytes"] < 1.1 * summary["estimated_peak_memory_bytes"] + 2**26
