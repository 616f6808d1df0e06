"""Start the arms of a strategy and let them take turns."""

import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path

from benchmarks.overhead_arms.order import Order, write_order
from benchmarks.overhead_arms.turns import Conductor, Turn
from benchmarks.overhead_arms.workload import Loss, Workload
from toolkit.engines.strategies import Strategy
from toolkit.launch.processes import LAUNCHER, Processes, launch_words, processes

TURN_S = 240.0
"""Longest time for a turn; the first includes starting the processes."""
_LOOK_EVERY_S = 0.05
TOOLKIT, PLAIN = "toolkit", "plain"
_NEEDS = {"trainer": "transformers", "fabric": "lightning"}
_SHARDED_TRAINER = "without a GPU Trainer wraps in DistributedDataParallel, whatever `fsdp` says"


@dataclass(frozen=True)
class Arm:
    """One loop under one strategy.

    Attributes:
        loop: the module in this folder, less its `_loop`.
    """

    loop: str
    strategy: Strategy
    loss: Loss = "plain"

    @property
    def name(self) -> str:
        """Such as `toolkit ddp chunked`."""
        return f"{self.loop} {self.strategy}" + (" chunked" if self.loss == "chunked" else "")


@dataclass
class Measured:
    """One arm at one workload.

    Attributes:
        turns: what it did; the first turn, which warms up, is not among them.
        not_run: why there are no turns.
    """

    arm: Arm
    turns: list[Turn] = field(default_factory=list)
    not_run: str | None = None


def arms_of(strategy: Strategy) -> list[Arm]:
    """Return what is compared under a strategy."""
    others = [] if strategy == "zero2" else ["trainer", "fabric"]
    return [
        Arm(PLAIN, strategy),
        Arm(TOOLKIT, strategy),
        Arm(TOOLKIT, strategy, "chunked"),
        *(Arm(loop, strategy) for loop in others),
    ]


def reason_not_to_run(arm: Arm) -> str | None:
    """Return why an arm cannot run here, or None if it can."""
    package = _NEEDS.get(arm.loop)
    if package and find_spec(package) is None:
        return f"{package} is not installed"
    return _SHARDED_TRAINER if (arm.loop, arm.strategy) == ("trainer", "fsdp2") else None


def measure(arms: Sequence[Arm], workload: Workload) -> list[Measured]:
    """Start all arms at once and let them take turns, each round in another order."""
    found = [Measured(arm, not_run=reason_not_to_run(arm)) for arm in arms]
    conductor = Conductor()
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        workload.write_tokens(Path(folder) / "data")
        started = {}
        for number, measured in enumerate(found):
            if measured.not_run is None:
                order = _order(measured.arm, workload, Path(folder), number, conductor.port)
                command = launch_command(
                    measured.arm, write_order(order), world_size=workload.world_size
                )
                group = processes([command], folder=order.folder)
                started[measured.arm] = stack.enter_context(group)
                # All warm up at the same time, as soon as they are up.
                conductor.go(measured.arm.name, 0)
        for turn in range(workload.turns):
            first = turn % len(found)
            for measured in [*found[first:], *found[:first]]:
                if measured.not_run is None:
                    _take_turn(measured, turn, conductor, started[measured.arm])
        for arm in started:
            conductor.stop(arm.name, workload.turns)
    return found


def _order(arm: Arm, workload: Workload, folder: Path, number: int, port: int) -> Order:
    own = folder / f"arm{number}"
    own.mkdir()
    return Order(
        name=arm.name,
        strategy=arm.strategy,
        loss=arm.loss,
        workload=workload,
        data=folder / "data",
        folder=own,
        port=port,
    )


def _take_turn(measured: Measured, turn: int, conductor: Conductor, process: Processes) -> None:
    """Let an arm have its turn; one that fails has no turns at all, but the reason."""
    conductor.go(measured.arm.name, turn)
    deadline = time.monotonic() + TURN_S
    while (done := conductor.result(measured.arm.name, turn)) is None:
        late = time.monotonic() > deadline
        if process.any_ended or late:
            what = f"no turn was over within {TURN_S:g} s" if late else "its processes ended"
            measured.not_run = f"failed: {what}: {process.last_error()}"
            measured.turns.clear()
            return
        time.sleep(_LOOK_EVERY_S)
    if turn:
        measured.turns.append(done)


def launch_command(arm: Arm, order_file: Path, *, world_size: int) -> list[str]:
    """Return the line that starts an arm: the toolkit's own launcher, or torchrun."""
    script = ["--module", f"benchmarks.overhead_arms.{arm.loop}_loop", str(order_file)]
    if arm.loop == TOOLKIT:
        return [*LAUNCHER, *launch_words(arm.strategy, world_size, script)]
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    return [*torchrun, "--nproc_per_node", str(world_size), *script]
