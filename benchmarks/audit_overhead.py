"""What an audit costs a training step while it watches: watched and plain steps take turns.

A small GPT-2 under DDP in one process, at 2 micro-steps of 4,096 tokens. What costs time by the
parameter weighs as much as in GPT-2 124M at 524,288 tokens a step on one rank: 1.9M parameters for
8,192 tokens. Time is the thread's processor time. The first watched step of each turn finds models
and hooks them; it is kept apart as `start_s`. `share` is what the
watch itself measures: time inside its own functions over that of the steps around them.

    python -m benchmarks.audit_overhead      # writes results/audit_overhead.json
"""

import argparse
import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from benchmarks.machine import describe_environment, find_machine
from benchmarks.measured import Spread
from toolkit.home import expand_words

RESULTS = Path(__file__).parent / "results"
MODEL = {"n_layer": 4, "n_head": 5, "n_embd": 160, "vocab_size": 3584, "block_size": 256}
MICRO_STEPS, MICRO_BATCH_SIZE = 2, 16
STEPS, TURNS = 5, 12


def main() -> None:
    """Measure and write."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=RESULTS / "audit_overhead.json")
    parser.add_argument("--turns", type=int, default=TURNS)
    asked = parser.parse_args(expand_words(sys.argv[1:]))
    record = {
        "environment": describe_environment(find_machine().name, threads=1).model_dump(),
        "model": MODEL,
        "micro_steps": MICRO_STEPS,
        "micro_batch_size": MICRO_BATCH_SIZE,
        **measure(asked.turns),
    }
    asked.out.parent.mkdir(parents=True, exist_ok=True)
    asked.out.write_text(json.dumps(record, indent=1) + "\n")


def measure(turns: int) -> dict[str, Any]:
    """Return processor seconds a step of each turn, and the ratio of the turns' medians."""
    import torch
    from torch import distributed

    from toolkit.audit.watch import Watch

    torch.set_num_threads(1)
    distributed.init_process_group("gloo", store=distributed.HashStore(), rank=0, world_size=1)
    step = _training_step()
    _seconds(step, 3)
    plain, watched, start, share = [], [], [], []
    for _ in range(turns):
        plain.append(_median(_seconds(step, STEPS)))
        with TemporaryDirectory() as folder:
            watch = Watch(Path(folder), steps=STEPS, stops=False)
            _seconds(step, 1)
            started = watch.watch_s
            others = _seconds(step, STEPS - 1)
            spent = watch.watch_s - started
            watch.finish()
            if watch.problem is not None or len(watch.done) != STEPS - 1:
                raise RuntimeError(watch.problem or "steps were not seen")
        watched.append(_median(others))
        start.append(started)
        share.append(spent / sum(others))
    distributed.destroy_process_group()
    ratio = Spread.quartiles(own / other for own, other in zip(watched, plain, strict=True))
    inside = Spread.quartiles(share)
    print(f"inside the watch: {inside.median:.2%} ({inside.low:.2%} to {inside.high:.2%})")
    print(f"watched / plain: {ratio.median:.4f} ({ratio.low:.4f} to {ratio.high:.4f})")
    return {
        "plain_s": plain,
        "watched_s": watched,
        "start_s": Spread.quartiles(start)._asdict(),
        "share": inside._asdict(),
        "ratio": ratio._asdict(),
    }


def _training_step() -> Callable[[], None]:
    import torch

    from toolkit.model.gpt2 import GPT2
    from toolkit.model.sizes import ModelSizes

    torch.manual_seed(0)
    model = torch.nn.parallel.DistributedDataParallel(GPT2(ModelSizes(**MODEL)))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    generator = torch.Generator().manual_seed(0)

    def step() -> None:
        for micro_step in range(MICRO_STEPS):
            model.require_backward_grad_sync = micro_step == MICRO_STEPS - 1
            shape = (MICRO_BATCH_SIZE, MODEL["block_size"] + 1)
            tokens = torch.randint(MODEL["vocab_size"], shape, generator=generator)
            logits = model(tokens[:, :-1]).flatten(0, 1)
            loss = torch.nn.functional.cross_entropy(logits, tokens[:, 1:].flatten())
            (loss / MICRO_STEPS).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()

    return step


def _seconds(step: Callable[[], None], count: int) -> list[float]:
    found = []
    for _ in range(count):
        started = time.process_time()
        step()
        found.append(time.process_time() - started)
    return found


def _median(values: list[float]) -> float:
    return sorted(values)[len(values) // 2]


if __name__ == "__main__":
    main()
