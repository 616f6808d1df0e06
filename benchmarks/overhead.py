"""The toolkit's loop against others: per-step overhead and tokens/s, on the same cores in one run.

Plain PyTorch and DeepSpeed, Hugging Face's Trainer and Lightning Fabric train the same model on the
same tokens with the same optimizer, clipping and accumulation. All arms of a strategy are started
once and then take turns, in another order each time; a ratio compares two turns of one round. Arms
whose losses differ are an error, not a result.

    python -m benchmarks.overhead [--out benchmarks/results/overhead.json] [--strategies ddp,fsdp2]
"""

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from benchmarks.overhead_arms.arm import write_order
from benchmarks.overhead_arms.turns import Conductor, Turn
from benchmarks.overhead_arms.workload import Loss, Workload
from toolkit.backends.strategies import Strategy
from toolkit.train import find_launch_file

ROOT = Path(__file__).resolve().parent.parent
TINY = Workload(
    n_layer=2,
    n_head=2,
    n_embd=32,
    vocab_size=512,
    seq_len=32,
    micro_batch_size=1,
    grad_accum_steps=2,
    world_size=2,
    steps_per_turn=41,
    turns=11,
)
LARGER = Workload(
    n_layer=4,
    n_head=4,
    n_embd=256,
    vocab_size=8192,
    seq_len=256,
    micro_batch_size=1,
    grad_accum_steps=2,
    world_size=2,
    steps_per_turn=7,
    turns=11,
)
START_S = 240.0


@dataclass(frozen=True)
class Arm:
    """One loop under one strategy."""

    loop: str
    strategy: Strategy
    loss: Loss = "plain"

    @property
    def name(self) -> str:
        """Its name in the record."""
        return f"{self.loop}/{self.strategy}" + ("/chunked" if self.loss == "chunked" else "")


def arms_of(strategy: Strategy) -> list[Arm]:
    arms = [
        Arm("plain", strategy),
        Arm("toolkit_loop", strategy),
        Arm("toolkit_loop", strategy, "chunked"),
    ]
    if strategy == "ddp":
        arms.append(Arm("trainer", strategy))
    if strategy != "zero2":
        arms.append(Arm("fabric", strategy))
    return arms


def command(arm: Arm, workload: Workload, order: Path) -> list[str]:
    module = ["-m", f"benchmarks.overhead_arms.{arm.loop}", str(order)]
    if arm.loop == "toolkit_loop":
        accelerate = Path(sys.executable).with_name("accelerate")
        launch = [str(accelerate), "launch", "--config_file", str(find_launch_file(arm.strategy))]
        return [*launch, "--num_processes", str(workload.world_size), *module]
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    return [*launcher, "--nproc_per_node", str(workload.world_size), *module]


@contextmanager
def running(arm: Arm, workload: Workload, folder: Path, data: Path, port: int):
    folder.mkdir()
    order = folder / "order.json"
    write_order(
        order,
        name=arm.name,
        strategy=arm.strategy,
        loss=arm.loss,
        workload=workload,
        data=data,
        port=port,
    )
    env = {
        **os.environ,
        "OMP_NUM_THREADS": "1",
        "HF_HOME": str(folder),
        "PYTHONPATH": f"{ROOT}:{os.environ.get('PYTHONPATH', '')}",
    }
    with (folder / "log").open("w") as log:
        process = subprocess.Popen(
            command(arm, workload, order),
            env=env,
            stdout=log,
            stderr=log,
            start_new_session=True,
            cwd=ROOT,
        )

    def alive():
        if process.poll() is not None:
            raise RuntimeError(f"{arm.name}: ended: " + (folder / "log").read_text()[-3000:])

    try:
        yield alive
    finally:
        try:
            process.wait(20)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def measure(arms, workload, turns=None):
    conductor = Conductor()
    found = {a.name: [] for a in arms}
    with tempfile.TemporaryDirectory() as t, ExitStack() as stack:
        t = Path(t)
        workload.write_tokens(t / "data")
        alive = {}
        for i, a in enumerate(arms):
            alive[a.name] = stack.enter_context(
                running(a, workload, t / f"arm{i}", t / "data", conductor.port)
            )
            conductor.go(a.name, 0)
        for turn in range(workload.turns):
            order = arms[turn % len(arms) :] + arms[: turn % len(arms)]
            for a in order:
                conductor.go(a.name, turn)
                found[a.name].append(conductor.result(a.name, turn, alive=alive[a.name]))
        for a in arms:
            conductor.stop(a.name, workload.turns)
    return found


if __name__ == "__main__":
    from statistics import median, quantiles
    import argparse

    p = argparse.ArgumentParser()
    p.add_argument("--strategies", default="ddp,fsdp2,zero2")
    p.add_argument("--which", default="tiny,larger")
    p.add_argument("--loops", default="")
    o = p.parse_args()
    for s in o.strategies.split(","):
        for which in o.which.split(","):
            w = {"tiny": TINY, "larger": LARGER}[which]
            t0 = time.time()
            arms = [a for a in arms_of(s) if not o.loops or a.loop in o.loops.split(",")]
            f = measure(arms, w)
            print(which, s, f"{time.time() - t0:.0f} s")
            base = f[f"plain/{s}"]
            for name, turns in f.items():
                ms = [1e3 * sum(t.step_s) / len(t.step_s) for t in turns[1:]]
                meds = [1e3 * median(t.step_s) for t in turns[1:]]
                r = [sum(b.step_s) / sum(t.step_s) for b, t in zip(base[1:], turns[1:])]
                over = [
                    1e6 * (median(t.step_s) - median(b.step_s)) for b, t in zip(base[1:], turns[1:])
                ]
                q = quantiles(r, n=4)
                if os.environ.get("OH_V"):
                    print([round(t.loss, 6) for t in turns])
                print(
                    f"  {name:28} step {median(ms):8.3f} ms (med-of-med {median(meds):8.3f})  ratio {median(r):.4f} [{q[0]:.4f} {q[2]:.4f}] overhead {median(over):8.0f} us  loss {turns[0].loss:.6f} {turns[-1].loss:.6f}",
                    flush=True,
                )
