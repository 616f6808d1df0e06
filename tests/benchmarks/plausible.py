"""Made-up records with plausible numbers, for tests of the report. Nothing here was measured."""

import random
from itertools import product
from typing import Any

from benchmarks.record import Case, Record
from tests.program.communication import Range, expected_collectives
from tests.program.held_gradients import held_gradient_bytes
from toolkit.engines.strategies import Accumulation, Strategy, replicas_of
from toolkit.model.sizes import ModelSizes
from toolkit.prediction.machine_profile import MachineProfile

SIZES = ModelSizes(n_layer=4, n_head=4, n_embd=128, vocab_size=2048, block_size=128)
COMPUTE_S = 0.06
"""Seconds of one micro-step's arithmetic."""

ENVIRONMENT = {
    "versions": {"torch": "0.0", "deepspeed": "0.0"},
    "device": "cpu",
    "cpu": "made up",
    "cores": 2,
    "threads": 1,
    "git": {"commit": "0000000"},
    "started_at": "2000-01-01T00:00:00+00:00",
}
STRATEGIES: tuple[Strategy, ...] = ("ddp", "fsdp2", "zero2", "zero3")
MODES: tuple[Accumulation, ...] = ("replicated", "sharded")


def case(strategy: Strategy, accumulation: Accumulation, **fields: Any) -> Case:
    """A case of 2 ranks."""
    usual = {"grad_accum_steps": 4, "micro_batch_size": 1, "seq_len": 64, "world_size": 2}
    return Case(
        strategy=strategy,
        accumulation=accumulation,
        **{"precision": "fp32", "model": vars(SIZES), **usual, **fields},
    )


def cases(links: tuple[float | None, ...] = (100, 300, 1000, None), **fields: Any) -> list[Case]:
    """Four strategies in both modes, A of 1, 4 and 16, over some links."""
    every = product(STRATEGIES, MODES, (1, 4, 16), links)
    return [
        case(s, mode, grad_accum_steps=a, link_mbit_per_s=link, **fields)
        for s, mode, a, link in every
    ]


def step_seconds(of: Case) -> float:
    """Arithmetic, half of the reductions hidden behind it, and every gather."""
    link = (of.link_mbit_per_s or 8000) * 1e6 / 8
    found = _expected(of)
    reduced = found["all_reduce"]["bytes"]["high"] + found["reduce_scatter"]["bytes"]["high"] / 2
    gathered = found["all_gather"]["bytes"]["low"] / 2
    compute = of.grad_accum_steps * COMPUTE_S
    return compute + max(reduced / link - compute / 2, 0) + gathered / link


def record(of: Case, repeat: int = 0, **changes: Any) -> Record:
    """A good repeat whose counts are what the formulas say and whose times scatter by 3 %."""
    noise = random.Random(f"{of.model_dump_json()} {repeat}")
    step_s = [step_seconds(of) * noise.gauss(1, 0.03) for _ in range(5)]
    expected = _expected(of)
    held = held_gradient_bytes(
        of.strategy,
        of.accumulation,
        precision=of.precision,
        sizes=SIZES,
        world_size=of.world_size,
        replicas=replicas_of(of.strategy),
    )
    median = sorted(step_s)[2]
    good = {
        "case": of,
        "repeat": repeat,
        "environment": ENVIRONMENT,
        "agreement": {
            "loss": 7.6,
            "reference_loss": 7.6,
            "grad_norm": 1.2,
            "reference_grad_norm": 1.2,
            "tolerance": 1e-4,
            "ok": True,
        },
        "collectives": {
            kind: {"calls": figures["calls"]["low"], "bytes": figures["bytes"]["low"]}
            for kind, figures in expected.items()
        },
        "expected_collectives": expected,
        "gradient_bytes_held": held if of.grad_accum_steps > 1 else None,
        "expected_gradient_bytes_held": held if of.grad_accum_steps > 1 else None,
        "peak_memory_bytes": 60_000_000,
        "estimated_peak_memory_bytes": 59_900_000,
        "step_s": step_s,
        "split": {
            "forward_s": 0.3 * median,
            "backward_s": 0.4 * median,
            "communication_s": 0.2 * median,
            "optimizer_s": 0.1 * median,
        },
        "tokens_per_step": of.tokens_per_step,
        "tokens_per_s": of.tokens_per_step / median,
        "tokens_per_s_per_gpu": of.tokens_per_step / median / of.world_size,
    }
    return Record.model_validate({**good, **changes})


def profile(link_mbit_per_s: float) -> MachineProfile:
    """A machine profile of 2 ranks whose collectives take what the link needs, and 0.1 ms."""
    rate = link_mbit_per_s * 1e6 / 8
    return MachineProfile.model_validate(
        {
            "environment": ENVIRONMENT,
            "world_size": 2,
            "backend": "gloo",
            "link_mbit_per_s": link_mbit_per_s,
            "collectives": {
                kind: {
                    "points": [
                        {"bytes": size, "seconds": 1e-4 + size * share / rate, "spread": 0.02}
                        for size in (10**4, 10**7)
                    ],
                    "latency_s": 1e-4,
                    "bytes_per_s": rate / share,
                }
                for kind, share in (("all_reduce", 1), ("reduce_scatter", 0.5), ("all_gather", 0.5))
            },
            "matmul_flops_per_s": 5e10,
        }
    )


def unmeasured(of: Case, **reason: str) -> Record:
    """A record of a case that failed or was skipped: `error="..."` or `skipped="..."`."""
    return Record.model_validate({"case": of, "environment": ENVIRONMENT, **reason})


def _expected(of: Case) -> dict[str, Any]:
    kinds = expected_collectives(
        of.strategy,
        of.accumulation,
        sizes=SIZES,
        grad_accum_steps=of.grad_accum_steps,
        precision=of.precision,
        world_size=of.world_size,
        replicas=replicas_of(of.strategy),
    )
    return {
        kind: {"calls": _bounds(found.calls), "bytes": _bounds(found.bytes)}
        for kind, found in kinds.items()
        if kind != "other"
    }


def _bounds(found: Range) -> dict[str, int]:
    return {"low": found.at_least, "high": found.at_most}
