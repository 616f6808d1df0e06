"""How long a save holds training up: synchronous, asynchronous, and the disk's own rate beside.

One process with GPT-2's 124M parameters and both AdamW moments, 1.5 GB; no training in between, so
the second asynchronous save shows the copy into memory that is there already.

    python benchmarks/checkpoint_save.py FOLDER > benchmarks/results/checkpoint_save.json
"""

import json
import os
import shutil
import sys
import time
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from statistics import median

import torch

from toolkit.backends.build import build_engine
from toolkit.backends.engine import Engine
from toolkit.backends.launched import read_launch
from toolkit.backends.process_group import start_process_group
from toolkit.batching import plan_batch
from toolkit.checkpoint.position import Position
from toolkit.checkpoint.saver import Saver
from toolkit.checkpoint.state import own_pieces, shapes_of
from toolkit.checkpoint.store import CheckpointStore
from toolkit.config import OptimizerConfig
from toolkit.model.gpt2 import GPT2
from toolkit.model.sizes import preset_sizes
from toolkit.training.optimizer import build_optimizer

REPEATS = 2


def build() -> Engine:
    """GPT-2 with its optimizer state, as after one update."""
    launched = read_launch({})
    start_process_group(launched, timeout=timedelta(seconds=60))
    sizes = preset_sizes("gpt2")
    model = GPT2(sizes)
    plan = plan_batch(tokens_per_step=1024, seq_len=1024, micro_batch_size=1, world_size=1)
    engine = build_engine(
        model,
        build_optimizer(model, OptimizerConfig()),
        launched=launched,
        plan=plan,
        sizes=sizes,
        accumulation="replicated",
        precision="fp32",
        grad_clip=1.0,
    )
    engine.start_moments(1)
    return engine


def position(engine: Engine, step: int) -> Position:
    """What goes beside the tensors."""
    return Position(
        step=step,
        data_step=step,
        updates=step,
        tokens=step,
        moments=True,
        loss_scale=None,
        strategy="single",
        world_size=1,
        shapes=shapes_of(engine),
        config={},
        data={},
        versions={},
    )


def seconds(act: Callable[[], object]) -> float:
    """Time one call."""
    started = time.perf_counter()
    act()
    return time.perf_counter() - started


def write_plainly(path: Path, size: int) -> None:
    """What the disk can do: the same bytes from memory, in large blocks, then fsync."""
    block = os.urandom(64 << 20)
    with path.open("wb", buffering=0) as file:
        for start in range(0, size, len(block)):
            file.write(block[: size - start])
        os.fsync(file.fileno())
    path.unlink()


def main(folder: Path) -> None:
    """Measure and print one JSON object; the first round of each is shown but not counted."""
    engine = build()
    size = sum(piece.bytes for piece in own_pieces(engine, with_moments=True))
    folder.mkdir(parents=True, exist_ok=True)
    store = CheckpointStore(folder)
    # The same savers throughout, as in a run: the asynchronous one keeps its memory.
    waits, goes_on = (
        Saver(engine, store, keep_last=1, asynchronous=asynchronous)
        for asynchronous in (False, True)
    )
    plain, sync, held, whole = [], [], [], []
    for repeat in range(REPEATS + 1):
        # What earlier writing left in the cache is not for the next to wait for.
        os.sync()
        plain.append(seconds(lambda: write_plainly(folder / "plain", size)))
        now = position(engine, repeat + 1)
        sync.append(seconds(lambda now=now: (waits.begin(now), waits.finish())))
        held.append(seconds(lambda now=now: goes_on.begin(now)))
        whole.append(held[-1] + seconds(goes_on.finish))
    shutil.rmtree(folder)
    rates = {"disk": size / median(plain[1:]), "sync": size / median(sync[1:])}
    print(
        json.dumps(
            {
                "torch": torch.__version__,
                "cpus": os.cpu_count(),
                "bytes": size,
                "seconds": {
                    "plain_write": plain,
                    "sync_save": sync,
                    "async_held_up": held,
                    "async_until_complete": whole,
                },
                "median_without_the_first": {
                    "disk_bytes_per_s": rates["disk"],
                    "sync_bytes_per_s": rates["sync"],
                    "sync_of_disk": rates["sync"] / rates["disk"],
                    "held_up_of_sync": median(held[1:]) / median(sync[1:]),
                },
            },
            indent=1,
        )
    )


if __name__ == "__main__":
    main(Path(sys.argv[1]))
