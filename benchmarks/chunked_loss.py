"""The chunked loss against the plain one: time of head and loss, and peak of a GPT-2 124M step.

Time is one thread's processor time for forward and backward of head and loss, the two taking turns.
The peak is that of one update of the whole model in one process at 1,024 tokens a sequence: as the
formula gives, as traced on tensors without data, and as measured, allocation by allocation, at the
largest micro-batch whose plain loss fits this machine now.

    python -m benchmarks.chunked_loss      # writes results/chunked_loss.json
"""

import argparse
import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import psutil

from benchmarks.machine import describe_environment, find_machine
from benchmarks.measured import Spread
from benchmarks.memory.configurations import Configuration
from benchmarks.overhead.workload import Loss
from toolkit.engines.strategies import Precision
from toolkit.home import expand_words
from toolkit.program.step import estimate_peak

RESULTS = Path(__file__).parent / "results"
LOSSES: tuple[Loss, ...] = ("plain", "chunked")
PRECISIONS: tuple[Precision, ...] = ("fp32", "bf16")
HEADS = [
    {"rows": 1024, "n_embd": 768, "vocab_size": 50304},
    {"rows": 512, "n_embd": 256, "vocab_size": 50304},
    {"rows": 256, "n_embd": 96, "vocab_size": 50304},
    {"rows": 512, "n_embd": 256, "vocab_size": 8192},
]
REPEATS = 9
MICRO_BATCH_SIZE = 16
LEFT_FREE = 0.1
"""Share of the available memory that a measured step must leave: the formula omits libraries
and kernels' scratch."""


def main() -> None:
    """Measure and write; with `--measure`, one step in a process of its own."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=RESULTS / "chunked_loss.json")
    parser.add_argument("--measure", help=argparse.SUPPRESS)
    asked = parser.parse_args(expand_words(sys.argv[1:]))
    if asked.measure:
        print(measured(Configuration.from_row(json.loads(asked.measure))))
        return
    record = {
        "environment": describe_environment(find_machine().name, threads=1).model_dump(),
        "time": [
            time_head(precision=precision, **head) for precision in PRECISIONS for head in HEADS
        ],
        "peak": list(peaks()),
    }
    asked.out.parent.mkdir(parents=True, exist_ok=True)
    asked.out.write_text(json.dumps(record, indent=1) + "\n")


def time_head(*, rows: int, n_embd: int, vocab_size: int, precision: Precision) -> dict[str, Any]:
    """Time both losses on the same values; `speed` is how many times as fast the chunked one is.

    bf16 is what autocast makes of fp32 values, as under DDP.
    """
    import torch

    from toolkit.model.loss import chunked_cross_entropy_sum, cross_entropy_sum

    torch.set_num_threads(1)
    generator = torch.Generator().manual_seed(0)
    hidden = torch.randn(rows, n_embd, generator=generator, requires_grad=True)
    weight = (0.02 * torch.randn(vocab_size, n_embd, generator=generator)).requires_grad_()
    targets = torch.randint(vocab_size, (rows,), generator=generator)
    losses: dict[Loss, Callable[[], torch.Tensor]] = {
        "plain": lambda: cross_entropy_sum(hidden @ weight.T, targets),
        "chunked": lambda: chunked_cross_entropy_sum(hidden, weight, targets),
    }

    def seconds(loss: Loss) -> float:
        started = time.process_time()
        with torch.autocast("cpu", torch.bfloat16, enabled=precision == "bf16"):
            value = losses[loss]() / rows
        torch.autograd.grad(value, (hidden, weight))
        return time.process_time() - started

    rounds = [{loss: seconds(loss) for loss in LOSSES} for _ in range(REPEATS + 1)][1:]
    speed = Spread.quartiles(each["plain"] / each["chunked"] for each in rounds)
    head = {"rows": rows, "n_embd": n_embd, "vocab_size": vocab_size, "precision": precision}
    print(f"{head}: {speed.median:.3f} times as fast", flush=True)
    return {
        **head,
        "processor_s": {loss: [each[loss] for each in rounds] for loss in LOSSES},
        "speed": speed._asdict(),
    }


def peaks() -> Iterator[dict[str, Any]]:
    """Yield the peak with either loss, by method and precision."""
    for precision in PRECISIONS:
        yield _compare("formula", precision, MICRO_BATCH_SIZE, formula)
        yield _compare("trace", precision, MICRO_BATCH_SIZE, traced)
        yield _compare("measured", precision, largest_that_fits(precision), in_own_process)


def _compare(
    method: str, precision: Precision, micro_batch_size: int, peak: Callable[[Configuration], int]
) -> dict[str, Any]:
    found = {loss: peak(update(precision, micro_batch_size, loss)) for loss in LOSSES}
    lower_by = 1 - found["chunked"] / found["plain"]
    print(f"{method} {precision}, micro-batch {micro_batch_size}: {lower_by:.1%} lower", flush=True)
    return {
        "method": method,
        "precision": precision,
        "micro_batch_size": micro_batch_size,
        "bytes": found,
        "lower_by": lower_by,
    }


def update(precision: Precision, micro_batch_size: int, loss: Loss) -> Configuration:
    """Return one update of GPT-2 124M on one process."""
    return Configuration(
        method="allocator",
        strategy="single",
        accumulation="replicated",
        world_size=1,
        model="gpt2",
        micro_batch_size=micro_batch_size,
        seq_len=1024,
        grad_accum_steps=1,
        precision=precision,
        optimizer="adamw",
        activation_checkpointing=False,
        loss=loss,
        dropout=0.0,
    )


def formula(configuration: Configuration) -> int:
    """Return the peak in bytes that `toolkit estimate` gives for a CPU."""
    return estimate_peak(configuration.settings(device="cpu")).total


def traced(configuration: Configuration) -> int:
    """Return that of `toolkit estimate --method trace`."""
    from toolkit.verify.traced import trace_row

    return trace_row(configuration.settings(device="cpu")).peak


def largest_that_fits(precision: Precision) -> int:
    """Return the largest micro-batch, up to the one asked about, that can be measured here."""
    limit = (1 - LEFT_FREE) * psutil.virtual_memory().available
    size = MICRO_BATCH_SIZE
    while size > 1 and formula(update(precision, size, "plain")) > limit:
        size //= 2
    return size


def in_own_process(configuration: Configuration) -> int:
    """Return what `measured` does in a process without anything else in its memory."""
    row = json.dumps(configuration.row())
    command = [sys.executable, "-m", "benchmarks.chunked_loss", "--measure", row]
    printed = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout
    return int(printed.splitlines()[-1])


def measured(configuration: Configuration) -> int:
    """Return the peak in bytes of an update that has its moments already."""
    from benchmarks.memory.rank import random_micro_batches
    from benchmarks.trainer import build_from
    from toolkit.engines.launched import read_launch
    from toolkit.engines.process_group import start_process_group
    from toolkit.memory.allocator import measure_peak
    from toolkit.training.step import train_step

    launched = read_launch({})
    start_process_group(launched, timeout=timedelta(seconds=60))
    engine = build_from(configuration.settings(device="cpu"), launched, seed=0, lr=1e-3)
    engine.state.start_moments(1)
    micro_batches = random_micro_batches(configuration)
    with measure_peak(engine.device) as peak:
        train_step(engine, micro_batches, lr=1e-3)
    return peak.bytes


if __name__ == "__main__":
    main()
