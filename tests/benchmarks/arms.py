from typing import Any

from benchmarks.machine import Machine
from benchmarks.record import Arm, Environment, Record, Sizes

GIB = 2**30
TINY = Sizes(n_layer=2, n_head=2, n_embd=32, vocab_size=512, block_size=32)
ENVIRONMENT = Environment(
    versions={}, device="cpu", cpu="some", cores=2, threads=1, git=None, started_at="2026-01-01"
)
LAPTOP = Machine("cpu", "cpu", 0, 16 * GIB)


def arm(**changed: Any) -> Arm:
    fields: dict[str, Any] = {
        "strategy": "single",
        "accumulation": "replicated",
        "grad_accum_steps": 2,
        "micro_batch_size": 2,
        "seq_len": 32,
        "world_size": 1,
        "precision": "fp32",
        "model": TINY,
    }
    return Arm(**(fields | changed))


def record(of: Arm, **changed: Any) -> Record:
    return Record(arm=of, environment=ENVIRONMENT, **changed)
