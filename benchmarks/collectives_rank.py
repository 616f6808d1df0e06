"""One rank of `benchmarks.collectives`: time collectives by payload, and matrix products.

Rank 0 writes what was measured as JSON. The ranks meet over a file, so that no port is needed.
"""

import json
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median, quantiles
from typing import Any

import torch
import torch.distributed as dist

from benchmarks.machine_profile import KINDS
from toolkit.engines.traffic import EngineKind
from toolkit.launch.ownership import follow

SAMPLE_S = 0.5
"""Time for the calls of one payload; between `SAMPLES` of them."""
SAMPLES = (5, 30)
LONGEST_S = 1.0
"""Payloads grow as long as a call of the next is not going to take longer."""
SMALLEST_BYTES = 1024
GROWTH = 4
LARGEST_BYTES = {"cpu": 64 * 1024**2, "cuda": 256 * 1024**2}
# NCCL's calls return at once; a queue of them shows the time on the device, as in nccl-tests.
CALLS_PER_SAMPLE = {"cpu": 1, "cuda": 10}
MATMUL_SIZE = {"cpu": 1024, "cuda": 8192}
MATMUL_DTYPE = {"cpu": torch.float32, "cuda": torch.bfloat16}


def main(rank: int, world_size: int, meeting: str, results: str) -> None:
    """Measure and let rank 0 write."""
    device = torch.device("cpu")
    if torch.cuda.is_available():
        device = torch.device("cuda", rank)
        torch.cuda.set_device(device)
    backend = "nccl" if device.type == "cuda" else "gloo"
    dist.init_process_group(
        backend, init_method=f"file://{meeting}", rank=rank, world_size=world_size
    )
    found = {
        "backend": backend,
        "device": torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu",
        "threads": torch.get_num_threads(),
        "collectives": {kind: measure_collective(kind, device) for kind in KINDS},
        "matmul_flops_per_s": measure_matmul(device),
    }
    if rank == 0:
        Path(results).write_text(json.dumps(found))
    dist.barrier()
    dist.destroy_process_group()


def measure_collective(kind: EngineKind, device: torch.device) -> list[dict[str, Any]]:
    """Return points of growing payload; every rank agrees on how many."""
    points = []
    size = SMALLEST_BYTES
    while size <= LARGEST_BYTES[device.type]:
        points.append(measure_payload(kind, size, device))
        if points[-1]["seconds"] * GROWTH > LONGEST_S:
            break
        size *= GROWTH
    return points


def measure_payload(kind: EngineKind, size: int, device: torch.device) -> dict[str, Any]:
    """Return one point, in the fields of `benchmarks.machine_profile.Point`."""
    call = build_call(kind, size, device)
    # The first call of a payload sets up buffers, and its time says how many fit.
    calls = CALLS_PER_SAMPLE[device.type]
    timed(call, calls=calls, device=device)
    first_s, _ = timed(call, calls=calls, device=device)
    fewest, most = SAMPLES
    count = min(most, max(fewest, round(SAMPLE_S / first_s)))
    samples = [timed(call, calls=calls, device=device) for _ in range(count)]
    seconds = [wall_s for wall_s, _ in samples]
    lower, middle, upper = quantiles(seconds, n=4)
    return {
        "bytes": size,
        "seconds": middle,
        "spread": (upper - lower) / middle,
        "cpu_s": median(cpu_s for _, cpu_s in samples) if device.type == "cpu" else None,
    }


def build_call(kind: EngineKind, size: int, device: torch.device) -> Callable[[], object]:
    """Return a collective on fp32 tensors, by the calls that engines make."""
    whole = torch.zeros(size // 4, device=device)
    part = torch.zeros(size // 4 // dist.get_world_size(), device=device)
    calls: dict[EngineKind, Callable[[], object]] = {
        "all_reduce": lambda: dist.all_reduce(whole),
        "reduce_scatter": lambda: dist.reduce_scatter_tensor(part, whole),
        "all_to_all": lambda: dist.all_to_all_single(torch.empty_like(whole), whole),
        "all_gather": lambda: dist.all_gather_into_tensor(whole, part),
    }
    return calls[kind]


def timed(call: Callable[[], object], *, calls: int, device: torch.device) -> tuple[float, float]:
    """Return seconds and processor seconds per call, on the rank that took longest."""
    dist.barrier()
    cpu_started, started = time.process_time(), time.perf_counter()
    for _ in range(calls):
        call()
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    took = torch.tensor(
        [time.perf_counter() - started, time.process_time() - cpu_started],
        dtype=torch.float64,
        device=device,
    )
    dist.all_reduce(took, op=dist.ReduceOp.MAX)
    wall_s, cpu_s = (took / calls).tolist()
    return wall_s, cpu_s


def measure_matmul(device: torch.device) -> float:
    """Return this rank's floating-point operations per second in large matrix products.

    2 n^3 for two n x n matrices; all ranks multiply at once, as they do in training.
    """
    n = MATMUL_SIZE[device.type]
    left, right = (
        torch.randn(n, n, device=device, dtype=MATMUL_DTYPE[device.type]) for _ in range(2)
    )
    call = lambda: torch.matmul(left, right)  # noqa: E731
    calls = CALLS_PER_SAMPLE[device.type]
    timed(call, calls=calls, device=device)
    seconds = [timed(call, calls=calls, device=device)[0] for _ in range(SAMPLES[1])]
    return 2 * n**3 / median(seconds)


if __name__ == "__main__":
    follow(signal.SIGKILL)
    main(int(sys.argv[1]), int(sys.argv[2]), sys.argv[3], sys.argv[4])
