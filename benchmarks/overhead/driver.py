"""Start the loops of a strategy and let them take turns."""

import sys
import tempfile
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path

from benchmarks.group import start_group, take_turns
from benchmarks.overhead.turns import LoopCase, LoopOrder, Turn
from benchmarks.overhead.workload import Loss, Workload
from toolkit.engines.strategies import Strategy
from toolkit.launch.processes import LAUNCHER, ProcessError, launch_words

TURN_S = 240.0
"""Longest time for a turn, and for starting the processes."""
TOOLKIT, PLAIN = "toolkit", "plain"
_NEEDS = {"trainer": "transformers", "fabric": "lightning"}
_SHARDED_TRAINER = "without a GPU Trainer wraps in DistributedDataParallel, whatever `fsdp` is"


@dataclass
class LoopTurns:
    """What one loop did at one workload.

    Attributes:
        turns: the first turn, which warms up, is not among them.
        not_run: why there are no turns.
    """

    case: LoopCase
    turns: list[Turn] = field(default_factory=list)
    not_run: str | None = None


def cases_of(strategy: Strategy, workload: Workload) -> list[LoopCase]:
    """Return what is compared under a strategy."""

    def case(loop: str, loss: Loss = "plain") -> LoopCase:
        return LoopCase(
            loop=loop,
            strategy=strategy,
            # DeepSpeed's own way to accumulate, as in the loop without the toolkit.
            accumulation="sharded" if strategy == "zero2" else "replicated",
            grad_accum_steps=workload.grad_accum_steps,
            micro_batch_size=workload.micro_batch_size,
            seq_len=workload.seq_len,
            world_size=workload.world_size,
            precision="fp32",
            model=workload.sizes,
            loss=loss,
        )

    others = [] if strategy == "zero2" else ["trainer", "fabric"]
    return [case(PLAIN), case(TOOLKIT), case(TOOLKIT, "chunked"), *map(case, others)]


def reason_not_to_run(case: LoopCase) -> str | None:
    """Return why a case cannot run here, or None if it can."""
    package = _NEEDS.get(case.loop)
    if package and find_spec(package) is None:
        return f"{package} is not installed"
    return _SHARDED_TRAINER if (case.loop, case.strategy) == ("trainer", "fsdp2") else None


def measure(cases: Sequence[LoopCase], workload: Workload) -> list[LoopTurns]:
    """Start all cases at once and let them take turns; one that fails has none, but the reason."""
    found = {case: LoopTurns(case, not_run=reason_not_to_run(case)) for case in cases}
    with tempfile.TemporaryDirectory() as name, ExitStack() as stack:
        folder, groups = Path(name), {}
        workload.write_tokens(folder / "data")
        for number, case in enumerate(cases):
            if found[case].not_run is None:
                own = folder / f"case{number}"
                own.mkdir()
                order = LoopOrder(
                    case=case,
                    folder=own,
                    timeout_s=TURN_S,
                    workload=workload,
                    data=folder / "data",
                )
                groups[case] = stack.enter_context(start_group(order, [launch_command(order)]))
        for case, _, failed in take_turns(groups, lambda case, _: groups[case].connect()):
            if failed:
                found[case].not_run = f"failed: {failed}"
        turns = take_turns(groups, lambda case, _: groups[case].ask("turn"), rounds=workload.turns)
        for case, number, done in turns:
            if isinstance(done, ProcessError):
                found[case] = LoopTurns(case, not_run=f"failed: {done}")
            elif number:
                found[case].turns.append(done)
        for group in groups.values():
            group.release()
    return list(found.values())


def launch_command(order: LoopOrder) -> list[str]:
    """Return the line that starts a loop: the toolkit's own launcher, or torchrun."""
    case = order.case
    script = ["--module", f"benchmarks.overhead.{case.loop}_loop", str(order.file)]
    if case.loop == TOOLKIT:
        return [*LAUNCHER, *launch_words(case.strategy, case.world_size, script)]
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    return [*torchrun, "--nproc_per_node", str(case.world_size), *script]
