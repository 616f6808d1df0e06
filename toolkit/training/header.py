"""The lines printed before the first step, and the devices of this machine."""

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from toolkit.config import RunConfig
from toolkit.engines.launched import Launched
from toolkit.training.build import Run
from toolkit.training.step_time import here


def header(
    config: RunConfig, run: Run, launched: Launched, folder: Path, *, verbose: bool
) -> list[str]:
    """Return the lines printed before the first step; `verbose` shows every check."""
    backend = dist.get_backend() if dist.is_initialized() else "none"
    parameters = config.model.sizes().parameter_count
    return [
        f"run        {folder}",
        f"strategy   {launched.strategy}{_groups(launched)}, accumulation {config.accumulation}, "
        f"{launched.world_size} x {run.engine.device.type}, backend {backend}",
        f"model      {parameters:,} parameters, {config.precision}",
        f"batch      {run.plan.describe()}",
        f"data       {len(run.batches.dataset.stream):,} tokens, "
        f"{len(run.batches.dataset) // run.plan.sequences_per_step:,} steps per epoch",
        *_checks(run.facts, verbose=verbose),
        *(f"differs    {difference}" for difference in run.differing),
    ]


def _checks(facts: Sequence[str], *, verbose: bool) -> list[str]:
    if verbose:
        return [f"check      {fact}" for fact in facts]
    return [f"checks     {len(facts)} checks passed (--verbose shows each)"]


def _groups(launched: Launched) -> str:
    shards = launched.world_size // launched.replicas
    return f" in {launched.replicas} groups of {shards}" if launched.replicas > 1 else ""


def devices(device: torch.device) -> dict[str, Any]:
    """Return what `environment.json` holds of the devices, and of the ranks on this machine."""
    ranks = {"ranks": here(device).ranks_per_machine}
    if device.type == "cuda":
        names = [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())]
        return {"type": "cuda", "names": names, **ranks}
    names = [here(device).device]
    return {"type": device.type, "names": names, "cpu_count": os.cpu_count(), **ranks}
