"""One launched process of the error table: train each configuration and measure it.

Started by `accelerate launch` with a shipped launch file; rank 0 writes what the fullest rank held.
"""

import gc
import json
import os
import signal
import sys
from datetime import timedelta
from pathlib import Path

import torch

from benchmarks.memory import knobs
from benchmarks.memory.configurations import Configuration
from benchmarks.trainer import build_from
from toolkit.engines.accelerate_internals import forget_engine
from toolkit.engines.engine import Engine
from toolkit.engines.launched import Launched, read_launch
from toolkit.engines.process_group import start_process_group
from toolkit.launch.exit_code import end_process
from toolkit.launch.ownership import follow
from toolkit.memory.allocator import MeasuredPeak, live_storages, measure_peak
from toolkit.training.step import MicroBatch, train_step

MEASURED_STEPS = 3
"""From the second step on; the highest one counts."""


def main(order_file: Path) -> None:
    """Measure the configurations of an order file."""
    order = json.loads(order_file.read_text())
    launched = read_launch(os.environ)
    start_process_group(launched, timeout=timedelta(seconds=120))
    found = []
    for fields in order["configurations"]:
        configuration = Configuration.from_row(fields)
        peak = measure(configuration, launched)
        found.append(peak)
    if launched.rank == 0:
        Path(order["results"]).write_text(json.dumps(found))


def measure(configuration: Configuration, launched: Launched) -> dict[str, object]:
    """Return the fullest rank's peak, and this rank's by what its blocks are."""
    forget_engine()
    gc.collect()
    # Engines of earlier configurations may linger in this process; they are not this one's.
    lingering = sum(live_storages().values())
    with knobs.while_building(configuration):
        engine = build_from(configuration.settings(device="cpu"), launched, seed=0, lr=1e-3)
    if configuration.set_to_none is not None:
        knobs.clear_gradients(engine, set_to_none=configuration.set_to_none)
    micro_batches = random_micro_batches(configuration)
    with knobs.while_training(configuration):
        train_step(engine, micro_batches, lr=1e-3)
        peaks = [_measured_step(engine, micro_batches) for _ in range(MEASURED_STEPS)]
    peak = max(peaks, key=lambda peak: peak.bytes)
    hidden = knobs.unseen_buckets(engine)
    fullest = engine.ranks.max(torch.tensor(peak.bytes - lingering + hidden))
    return {"peak": int(fullest), **_parts(engine, peak, configuration)}


def _measured_step(engine: Engine, micro_batches: list[MicroBatch]) -> MeasuredPeak:
    with measure_peak(engine.device) as peak:
        train_step(engine, micro_batches, lr=1e-3)
    return peak


def random_micro_batches(configuration: Configuration) -> list[MicroBatch]:
    """Return tokens and targets of one step."""
    shape = (configuration.micro_batch_size, configuration.seq_len)
    vocabulary = configuration.sizes().vocab_size
    return [
        (torch.randint(vocabulary, shape), torch.randint(vocabulary, shape))
        for _ in range(configuration.grad_accum_steps)
    ]


def _parts(engine: Engine, peak: MeasuredPeak, configuration: Configuration) -> dict[str, int]:
    """Return the parts that show in who allocated them: the optimizer's, and a plain loss."""
    inner = getattr(engine.optimizer, "optimizer", engine.optimizer)
    moments = [
        getattr(tensor, "_local_tensor", tensor)
        for state in inner.state.values()
        for tensor in state.values()
        if torch.is_tensor(tensor) and tensor.numel() > 1
    ]
    temporaries = sum(
        block.size
        for block in peak.held
        if any(name.startswith("Optimizer.step") for name in block.operators)
    )
    parts = {"optimizer": sum(t.untyped_storage().nbytes() for t in moments) + temporaries}
    if configuration.loss == "plain":
        logits = 4 * configuration.tokens * configuration.sizes().vocab_size
        parts["loss"] = sum(block.size for block in peak.held if block.size == logits)
    return parts


if __name__ == "__main__":
    follow(signal.SIGKILL)
    main(Path(sys.argv[1]))
    end_process(0)
