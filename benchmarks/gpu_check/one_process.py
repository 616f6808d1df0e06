"""Memory and time of steps in a process of its own, one JSON object a line as they are measured.

`python -m benchmarks.gpu_check.one_process memory cuda` is what the stages start.
"""

import gc
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from datetime import timedelta
from pathlib import Path
from statistics import median
from threading import Timer
from typing import Any

import torch

from benchmarks.fitting import settings_of
from benchmarks.gpu_check.scale import Scale, scale_for, without_compiler
from benchmarks.machine import find_machine
from benchmarks.record import Case
from benchmarks.trainer import CaseTrainer
from toolkit.engines.accelerate_internals import forget_engine
from toolkit.engines.launched import read_launch
from toolkit.engines.process_group import start_process_group
from toolkit.launch.ownership import follow
from toolkit.memory.allocator import live_storages, measure_peak
from toolkit.memory.calibration import load_calibrations
from toolkit.model.flops import flops_per_token, peak_flops_per_s
from toolkit.program.step import estimate_peak
from toolkit.shipped import ROOT
from toolkit.training.run_folder import package_versions

WORKSPACES = 64 * 2**20
"""Bytes that kernels may take beside the tensors: cuBLAS has 32 MiB on a Hopper GPU (PyTorch's
notes on CUDA semantics, "cuBLAS workspaces"), and cuBLASLt as much again."""
TOLERANCE = 0.01
WARM_UP = 3


def measured(what: str, scale: Scale) -> Iterator[dict[str, Any]]:
    """Yield the rows of such a process; it is ended with the generator."""
    names = [name for name, case in scale.speed.items() if not case.compile]
    quick = ["--without-compiler"] if names == list(scale.speed) else []
    command = [sys.executable, "-m", __spec__.name, what, scale.device, *quick]
    environment = {**os.environ, "OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", "1")}
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, env=environment) as process:
        timer = Timer(4 * scale.timeout_s, process.kill)
        timer.start()
        try:
            assert process.stdout is not None
            for line in process.stdout:
                # Libraries print there as well.
                with suppress(ValueError):
                    yield json.loads(line)
            if code := process.wait():
                yield {"case": what, "problem": f"its process ended with {code}"}
        finally:
            timer.cancel()
            process.kill()


def memory(scale: Scale, folder: Path) -> Iterator[dict[str, Any]]:
    """Yield the peak of each case beside its estimate."""
    yield from measured("memory", scale)


def speed(scale: Scale, folder: Path) -> Iterator[dict[str, Any]]:
    """Yield the seconds of a step and its utilisation."""
    yield from measured("speed", scale)


def device_name(scale: Scale) -> str:
    """Return PyTorch's name of the device, asked elsewhere.

    A CUDA context of this process would count as memory that the measured ones need.
    """
    return str(next(measured("name", scale))["name"])


def main(what: str, scale: Scale) -> None:
    """Measure every case and print its row."""
    if what == "name":
        print(json.dumps({"name": find_machine().name}))
        return
    start_process_group(read_launch({}), timeout=timedelta(seconds=60))
    cases = {case.label: case for case in scale.memory} if what == "memory" else scale.speed
    for name, case in cases.items():
        forget_engine()
        gc.collect()
        torch.cuda.empty_cache()
        try:
            found = measure(case) if what == "memory" else time_case(case, scale.timed_steps)
        except torch.OutOfMemoryError as error:
            found = {"problem": str(error).splitlines()[0]}
        print(json.dumps({"case": name, **_variant(case), **found}), flush=True)


def measure(case: Case) -> dict[str, Any]:
    """Return the allocated, reserved and device's bytes of a case's second step."""
    # Engines before may linger, and are not this one's.
    lingering = _allocated()
    trainer = CaseTrainer(case, read_launch({}), shards=[])
    device = trainer.engine.device
    trainer.step()
    with measure_peak(device) as peak:
        trainer.step()
    peak.keep_calibration(run="gpu-check", versions=package_versions())
    estimate = estimate_peak(settings_of(case, "cuda" if device.type == "cuda" else "cpu"))
    found = peak.bytes - lingering
    return {
        "allocated_bytes": found,
        "estimated_bytes": estimate.total,
        "error_percent": round(100 * (estimate.total / found - 1), 3),
        **peak.on_device(),
        **_outside(found, least=estimate.least, most=estimate.total),
    }


def _outside(found: int, *, least: int, most: int) -> dict[str, str]:
    if least * (1 - TOLERANCE) <= found <= most * (1 + TOLERANCE) + WORKSPACES:
        return {}
    return {"problem": f"{found:,} bytes are not within the estimate, {least:,} to {most:,}"}


def _allocated() -> int:
    if torch.cuda.is_available():
        return torch.cuda.memory_allocated()
    return sum(live_storages().values())


def time_case(case: Case, steps: int) -> dict[str, Any]:
    """Return the median seconds of a step, their range, and the rate."""
    trainer = CaseTrainer(case, read_launch({}), shards=[])
    seconds = trainer.time_steps(steps, warm_up=WARM_UP)
    rate = case.tokens_per_step / median(seconds)
    peak = peak_flops_per_s(find_machine().name, case.precision)
    flops = flops_per_token(case.model, seq_len=case.seq_len)
    return {
        "step_s": median(seconds),
        "shortest_s": min(seconds),
        "longest_s": max(seconds),
        "tokens_per_s": rate,
        "mfu": None if peak is None else rate * flops / peak,
    }


def _variant(case: Case) -> dict[str, Any]:
    return {
        "parameters": case.model.parameter_count,
        "checkpointing": case.activation_checkpointing,
        "optimizer": case.optimizer,
    }


def calibration(device: str) -> dict[str, Any] | None:
    """Return what a GPU needs beyond allocated bytes, by the largest case measured on it."""
    found = load_calibrations().get(device)
    return None if found is None else found.model_dump(mode="json")


if __name__ == "__main__":
    follow(signal.SIGKILL)
    asked = scale_for("cuda" if sys.argv[2] == "cuda" else "cpu")
    main(sys.argv[1], without_compiler(asked) if sys.argv[3:] else asked)
