from typing import Any

from benchmarks.machine import Machine
from benchmarks.record import Case, Record
from toolkit.model.sizes import ModelSizes
from toolkit.prediction.machine_profile import KINDS, Curve, Environment, MachineProfile, Point

GIB = 2**30
TINY = ModelSizes(n_layer=2, n_head=2, n_embd=32, vocab_size=512, block_size=32)
ENVIRONMENT = Environment(
    versions={}, device="cpu", cpu="some", cores=2, threads=1, git=None, started_at="2026-01-01"
)
LAPTOP = Machine("cpu", "cpu", 0, 16 * GIB)


def case(**changed: Any) -> Case:
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
    return Case(**(fields | changed))


def record(of: Case, **changed: Any) -> Record:
    return Record(case=of, environment=ENVIRONMENT, **changed)


def profile(
    backend: str = "gloo",
    *,
    bytes_per_s: float = 1e8,
    cpu_s_per_byte: float = 0.0,
    cores: int = 8,
    world_size: int = 2,
    link: float | None = None,
) -> MachineProfile:
    """All collectives take their bytes by one rate, without latency."""
    points = tuple(Point(bytes=n, seconds=n / bytes_per_s, spread=0.0) for n in (1, 10**9))
    curve = Curve(
        points=points, latency_s=0.0, bytes_per_s=bytes_per_s, cpu_s_per_byte=cpu_s_per_byte
    )
    return MachineProfile(
        environment=ENVIRONMENT.model_copy(update={"cores": cores}),
        world_size=world_size,
        backend=backend,
        link_mbit_per_s=link,
        collectives=dict.fromkeys(KINDS, curve),
        matmul_flops_per_s=1e10,
    )
