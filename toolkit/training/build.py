"""From a configuration and a launch to everything a run needs, in the one order that works."""

import os
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch

from toolkit.batching import BatchPlan
from toolkit.config import RunConfig
from toolkit.data.batches import GlobalBatches, TokenDataset
from toolkit.engines.agreement import compare_ranks
from toolkit.engines.build import build_engine
from toolkit.engines.effective import check_effective
from toolkit.engines.engine import Engine
from toolkit.engines.launched import Launched
from toolkit.engines.process_group import start_process_group
from toolkit.engines.torch_internals import find_cpp_compiler
from toolkit.engines.traffic import Reductions
from toolkit.errors import UsageError
from toolkit.model.gpt2 import GPT2
from toolkit.program.readers.traffic import read_reductions
from toolkit.program.settings import settings_of_run
from toolkit.program.step import write_step
from toolkit.training.batches import build_batches, build_val, plan_run
from toolkit.training.facts import REMEDIES, marked, run_facts
from toolkit.training.optimizer import build_optimizer

_AFTER_WATCHDOG_S = 5.0
"""The watchdog, which names the rank that is behind, is to notice before a collective does."""
TIED = ("transformer.wte.weight", "lm_head.weight")


@dataclass(frozen=True)
class Run:
    """What the loop works with.

    Attributes:
        val: None where nothing is to be evaluated.
        data: the training data's `TokenStream.fingerprint`.
        reductions: when a step should reduce gradients.
        differing: in what the ranks differ and may.
    """

    config: RunConfig
    plan: BatchPlan
    batches: GlobalBatches
    val: TokenDataset | None
    data: dict[str, Any]
    engine: Engine
    facts: list[str]
    reductions: Reductions
    differing: list[str]


def build_run(config: RunConfig, launched: Launched, folder: Path) -> Run:
    """Check the data, join the processes, compare them, build the model and wrap it.

    Raises:
        UsageError: the batch, the data or the launch does not fit the configuration, the ranks were
            not started alike, or what was asked is not effective.
    """
    if config.training.deterministic:
        compute_deterministically()
    plan = plan_run(config, world_size=launched.world_size)
    batches = build_batches(config, plan, rank=launched.rank)
    val = build_val(config)
    if config.model.compile:
        check_compiler()
    data = _fingerprints(batches, val)
    device, differing = _join(config, launched, folder, data)
    model = build_model(config).to(device)
    optimizer = build_optimizer(model, config.optimizer)
    facts = _decays(optimizer)
    engine = build_engine(
        model,
        optimizer,
        launched=launched,
        plan=plan,
        accumulation=config.settled_accumulation,
        precision=config.precision,
        grad_clip=config.optimizer.grad_clip,
        reduce=config.reduce,
        trackers=list(config.training.trackers),
        project_dir=str(folder),
        compile_blocks=config.model.compile,
    )
    for fact in check_effective(engine, precision=config.precision, tied=TIED):
        facts.append(f"{fact.name}: {fact.describe()}")
    return Run(
        config,
        plan,
        batches,
        val,
        data["data.train"],
        engine,
        facts,
        _reductions(config, launched, device),
        differing,
    )


def _reductions(config: RunConfig, launched: Launched, device: torch.device) -> Reductions:
    settings = settings_of_run(
        config,
        launched.strategy,
        world_size=launched.world_size,
        replicas=launched.replicas,
        device="cuda" if device.type == "cuda" else "cpu",
    )
    return read_reductions(write_step(settings))


def _fingerprints(batches: GlobalBatches, val: TokenDataset | None) -> dict[str, dict[str, Any]]:
    data = {"data.train": batches.dataset.stream.fingerprint()}
    if val is not None:
        data["data.val"] = val.stream.fingerprint()
    return data


def _decays(optimizer: torch.optim.Optimizer) -> list[str]:
    return [
        f"{sum(p.numel() for p in group['params']):,} parameters decay by {group['weight_decay']:g}"
        for group in optimizer.param_groups
    ]


def _join(
    config: RunConfig, launched: Launched, folder: Path, data: dict[str, dict[str, Any]]
) -> tuple[torch.device, list[str]]:
    """Make the processes one group of ranks that were started alike."""
    timeout = timedelta(seconds=config.training.timeout_s + _AFTER_WATCHDOG_S)
    if launched.world_size == 1:
        return start_process_group(launched, timeout=timeout), []
    with marked(folder, rank=launched.rank) as mark:
        device = start_process_group(launched, timeout=timeout)
        facts = run_facts(config, launched, data, device=device, mark=mark)
        return device, compare_ranks(facts, REMEDIES, device=device)


def compute_deterministically() -> None:
    """Let every kernel add in one order; must run before CUDA starts.

    As PyTorch's notes on reproducibility ask for: cuBLAS reads the variable at its first use. New
    memory, which would be filled, is always written here before it is read.
    """
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    torch.use_deterministic_algorithms(True)
    torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]


def build_model(config: RunConfig) -> GPT2:
    """Build the model; its initial weights follow from the seed, on every rank the same."""
    torch.manual_seed(config.seed)
    return GPT2(
        config.model.sizes(),
        dropout=config.model.dropout,
        activation_checkpointing=config.model.activation_checkpointing,
        loss=config.model.loss,
    )


def check_compiler() -> None:
    """Refuse `model.compile` where torch.compile has no C++ compiler to work with.

    Raises:
        UsageError: names what is missing and what to set.
    """
    if find_cpp_compiler() is None:
        raise UsageError(
            "model.compile: true needs a C++ compiler (g++ or clang++) on the PATH; install one "
            "or set model.compile: false"
        )
