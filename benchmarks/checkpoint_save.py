"""How long a save holds training up: synchronous, asynchronous, and the disk's own rate beside.

One process with GPT-2's 124M parameters and both AdamW moments, 1.5 GB. Every round writes the same
bytes plainly, saves synchronously, and saves asynchronously with small training steps going on
behind; the order rotates from round to round, for a disk is faster after a rest.

    python -m benchmarks.checkpoint_save [--rounds 5] [--folder runs/checkpoint_save]

Prints what was found and writes it to `benchmarks/results/checkpoint_save.json`.
"""

import argparse
import json
import os
import platform
import shutil
import sys
import time
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from statistics import median

import torch

from benchmarks.measured import Spread
from benchmarks.trainer import build_from
from toolkit.checkpoint.saver import Saver
from toolkit.checkpoint.state import own_pieces, shapes_of
from toolkit.checkpoint.store import CheckpointStore
from toolkit.checkpoint.training_state import TrainingState
from toolkit.engines.engine import Engine
from toolkit.engines.launched import read_launch
from toolkit.engines.process_group import start_process_group
from toolkit.home import expand_words
from toolkit.model.sizes import preset_sizes
from toolkit.program.settings import StepSettings
from toolkit.training.step import train_step

SEQ_LEN = 64
QUIET_STEPS = 3
RESULTS = Path(__file__).parent / "results" / "checkpoint_save.json"


def build() -> Engine:
    """GPT-2 after one update."""
    launched = read_launch({})
    start_process_group(launched, timeout=timedelta(seconds=60))
    settings = StepSettings(
        sizes=preset_sizes("gpt2"),
        strategy="single",
        world_size=1,
        accumulation="replicated",
        micro_batch_size=1,
        seq_len=SEQ_LEN,
        grad_accum_steps=1,
    )
    engine = build_from(settings, launched, seed=0, lr=1e-5)
    step(engine)
    return engine


def step(engine: Engine) -> None:
    """One small update."""
    tokens = torch.arange(SEQ_LEN, device=engine.device).view(1, -1)
    train_step(engine, [(tokens, tokens)], lr=1e-5)


def seconds(act: Callable[[], object]) -> float:
    """Time one call."""
    started = time.perf_counter()
    act()
    return time.perf_counter() - started


class Measurement:
    """The seconds of every round, by what was done.

    Attributes:
        seconds: `plain` to write the bytes and sync them; `sync` save; `held_up` by an asynchronous
            one, when it is begun and when it is completed; `lost`: by how much longer the steps
            took in between.
    """

    def __init__(self, engine: Engine, folder: Path) -> None:
        self.engine = engine
        self.folder = folder
        self.bytes = sum(piece.bytes for piece in own_pieces(engine, with_moments=True))
        store = CheckpointStore(folder)
        # The same savers throughout, as in a run.
        self._waits, self._goes_on = (
            Saver(engine, store, keep_last=1, asynchronous=asynchronous)
            for asynchronous in (False, True)
        )
        self._saved = 0
        self.seconds: dict[str, list[float]] = {
            name: [] for name in ("plain", "sync", "held_up", "lost")
        }

    def round(self, number: int) -> None:
        """Do each once, beginning with another one than the round before."""
        acts = [self._plain, self._sync, self._asynchronous]
        for turn in range(len(acts)):
            # What earlier writing left in the cache is not for the next to wait for.
            os.sync()
            acts[(number + turn) % len(acts)]()

    def _plain(self) -> None:
        """What the disk can do: the same bytes from memory, in large blocks, then fsync."""
        path = self.folder / "plain"
        block = os.urandom(64 << 20)

        def write() -> None:
            with path.open("wb", buffering=0) as file:
                for start in range(0, self.bytes, len(block)):
                    file.write(block[: self.bytes - start])
                os.fsync(file.fileno())

        self.seconds["plain"].append(seconds(write))
        path.unlink()

    def _sync(self) -> None:
        state = self._state()

        def save() -> None:
            self._waits.begin(state)
            self._waits.finish()

        self.seconds["sync"].append(seconds(save))

    def _asynchronous(self) -> None:
        quiet = median(seconds(lambda: step(self.engine)) for _ in range(QUIET_STEPS))
        state = self._state()
        self.seconds["held_up"].append(seconds(lambda: self._goes_on.begin(state)))
        lost = 0.0
        while self._goes_on.is_writing:
            lost += seconds(lambda: step(self.engine)) - quiet
        self.seconds["lost"].append(lost)
        self.seconds["held_up"][-1] += seconds(self._goes_on.finish)
        self._goes_on.close()

    def _state(self) -> TrainingState:
        self._saved += 1
        return TrainingState.after(self._saved, shapes=shapes_of(self.engine))

    def ratios(self) -> dict[str, list[float]]:
        """Return what the goals are about, round by round."""
        plain, sync = self.seconds["plain"], self.seconds["sync"]
        return {
            "sync_rate_of_disk": [p / s for p, s in zip(plain, sync, strict=True)],
            "held_up_of_sync": [h / s for h, s in zip(self.seconds["held_up"], sync, strict=True)],
            "lost_of_sync": [x / s for x, s in zip(self.seconds["lost"], sync, strict=True)],
        }


def report(found: Measurement) -> list[str]:
    """Return the lines to print."""

    def spread(values: list[float], unit: str, scale: float = 1.0) -> str:
        middle, low, high = (scale * value for value in Spread.over(values))
        return f"{middle:.3g} {unit}, from {low:.3g} to {high:.3g}"

    ratios = found.ratios()
    load = os.getloadavg()[0] / (os.cpu_count() or 1)
    rates = {name: [found.bytes / s / 1e6 for s in found.seconds[name]] for name in found.seconds}
    return [
        f"{found.bytes:,} bytes, medians of {len(found.seconds['sync'])} rounds, "
        f"load {load:.1f} per core",
        f"the disk by itself       {spread(rates['plain'], 'MB/s')}",
        f"synchronous save         {spread(rates['sync'], 'MB/s')}",
        f"  of the disk's rate     {spread(ratios['sync_rate_of_disk'], '%', 100)} (goal: 70)",
        f"asynchronous, held up    {spread(found.seconds['held_up'], 's')}",
        f"  of a synchronous save  {spread(ratios['held_up_of_sync'], '%', 100)} (goal: below 10)",
        "steps meanwhile longer by",
        f"  of a synchronous save  {spread(ratios['lost_of_sync'], '%', 100)}",
    ]


def main() -> None:
    """Measure, print and keep."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--folder", type=Path, default=Path("runs/checkpoint_save"))
    options = parser.parse_args(expand_words(sys.argv[1:]))
    options.folder.mkdir(parents=True)
    try:
        found = Measurement(build(), options.folder)
        for number in range(options.rounds):
            found.round(number)
    finally:
        shutil.rmtree(options.folder)
    print("\n".join(report(found)))
    result = {
        "torch": torch.__version__,
        "machine": platform.machine(),
        "cpus": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "load_average": os.getloadavg(),
        "bytes": found.bytes,
        "seconds": found.seconds,
        "ratios": found.ratios(),
    }
    RESULTS.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
