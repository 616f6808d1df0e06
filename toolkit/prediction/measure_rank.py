"""One rank of `toolkit.prediction.measure`: time collectives by payload, and modules by shape.

Rank 0 writes what was measured as JSON. The ranks meet over a file, so that no port is needed.
"""

import json
import signal
import sys
import time
from collections.abc import Callable
from math import ceil
from pathlib import Path
from statistics import fmean, median, quantiles
from typing import Any

import torch
import torch.distributed as dist

from toolkit.engines.exchange import Exchange
from toolkit.engines.traffic import EngineKind
from toolkit.launch.ownership import follow
from toolkit.prediction.machine_profile import KINDS
from toolkit.prediction.measured_work import measure_work

SAMPLE_S = 0.5
"""Time for the calls of one payload; between `SAMPLES` of them."""
SAMPLES = (5, 60)
KEPT = 0.9
"""Of samples, the fastest ones, over which the mean is taken."""
PRODUCTS = 8
PRODUCT_SIZE = 256
"""Matrix products between two calls on a CPU: about 3 ms, as a block of a small model takes."""
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
    points, micro_steps = measure_work(device)
    found = {
        "backend": backend,
        "device": torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu",
        "threads": torch.get_num_threads(),
        "collectives": {kind: measure_collective(kind, device) for kind in KINDS},
        "matmul_flops_per_s": measure_matmul(device),
        "work": [point.model_dump() for point in points],
        "micro_steps": [one.model_dump() for one in micro_steps],
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
    """Return one point, in the fields of `Point`."""
    call = build_call(kind, size, device)
    # The first call of a payload sets up buffers, and its time shows how many fit.
    calls = CALLS_PER_SAMPLE[device.type]
    timed(call, calls=calls, device=device)
    first_s, _ = timed(call, calls=calls, device=device)
    fewest, most = SAMPLES
    count = min(most, max(fewest, round(SAMPLE_S / first_s)))
    on_cpu = device.type == "cpu"
    samples = (
        amid_computation(call, count)
        if on_cpu
        else [timed(call, calls=calls, device=device) for _ in range(count)]
    )
    seconds = sorted(wall_s for wall_s, _ in samples)
    lower, middle, upper = quantiles(seconds, n=4)
    return {
        "bytes": size,
        "seconds": fmean(seconds[: ceil(KEPT * count)]),
        "spread": (upper - lower) / middle,
        "cpu_s": median(cpu_s for _, cpu_s in samples) if on_cpu else None,
    }


def amid_computation(call: Callable[[], object], count: int) -> list[list[float]]:
    """Return seconds and processor seconds of calls between computation, the mean of the ranks.

    The ranks of a step come to a collective one after another, with their threads asleep: on two
    ranks that share a machine, up to 1.5 ms more than right after a barrier.
    """
    factor = torch.randn(PRODUCT_SIZE, PRODUCT_SIZE)
    samples = torch.zeros(count, 2, dtype=torch.float64)
    for sample in samples:
        for _ in range(PRODUCTS):
            torch.matmul(factor, factor)
        cpu_started, started = time.process_time(), time.perf_counter()
        call()
        sample[0] = time.perf_counter() - started
        sample[1] = time.process_time() - cpu_started
    dist.all_reduce(samples)
    found: list[list[float]] = (samples / dist.get_world_size()).tolist()
    return found


def build_call(kind: EngineKind, size: int, device: torch.device) -> Callable[[], object]:
    """Return a collective on fp32 tensors, by the calls that engines make."""
    ranks, group = dist.get_world_size(), dist.group.WORLD
    assert group is not None
    part = torch.zeros(size // 4 // ranks, device=device)
    whole = torch.zeros(ranks * part.numel(), device=device)
    exchange = Exchange(whole.numel(), whole.dtype)
    calls: dict[EngineKind, Callable[[], object]] = {
        "all_reduce": lambda: dist.all_reduce(whole),
        "reduce_scatter": lambda: dist.reduce_scatter_tensor(part, whole),
        "all_to_all": lambda: exchange(part, whole, group, dist.ReduceOp.SUM),
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
    seconds = [timed(call, calls=calls, device=device)[0] for _ in range(30)]
    return 2 * n**3 / median(seconds)


if __name__ == "__main__":
    follow(signal.SIGKILL)
    main(int(sys.argv[1]), int(sys.argv[2]), sys.argv[3], sys.argv[4])
