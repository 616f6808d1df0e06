"""Pretended machines: a network namespace and a host name each, `several_nodes.sh` in every one."""

import os
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from toolkit.launch.links import Link, linked
from toolkit.launch.processes import Processes, processes
from toolkit.shipped import ROOT

LOOK_EVERY_S = 0.1
MAIN_PORT = 29500
"""Where machines meet; nobody else can have taken it, as namespaces have their own ports."""
_SCRIPT = ROOT / "launch" / "several_nodes.sh"
NAMED = ("unshare", "--uts", "sh", "-c", 'echo "$0" > /proc/sys/kernel/hostname && exec "$@"')
"""Before a host name and a command that has it alone (unshare(1))."""
_FIRST_IN_PATH = 'PYTHONPATH=$0:$PYTHONPATH exec "$@"'


@dataclass(frozen=True)
class Plan:
    """What is rehearsed.

    Attributes:
        machines: how many.
        per_machine: processes on each.
        rate_mbit_per_s: of each machine's link.
        overrides: of the run configuration.
    """

    machines: int
    per_machine: int
    rate_mbit_per_s: float
    strategy: str
    config: Path
    overrides: tuple[str, ...]


@dataclass(frozen=True)
class Difference:
    """In what a machine is started otherwise than the others.

    Attributes:
        address: where it looks for machine 0.
        overrides: of the run configuration.
        modules: a folder in which Python looks first.
    """

    address: str | None = None
    overrides: tuple[str, ...] = ()
    modules: Path | None = None


class Machines:
    """Machines that are running, or were."""

    def __init__(self, plan: Plan, link: Link, folder: Path, stack: ExitStack) -> None:
        self.link = link
        self._plan, self._folder, self._stack = plan, folder, stack
        self._groups: list[Processes] = []
        self._ended: dict[int, float] = {}

    def start(self, difference: Difference | None = None) -> None:
        """Start the next machine."""
        machine, plan = len(self._groups), self._plan
        own = difference or Difference()
        folder = self._folder / f"machine{machine}"
        # What a killed launcher leaves among temporary files goes with the rehearsal.
        (folder / "tmp").mkdir(parents=True)
        environment = {
            "NODES": str(plan.machines),
            "NODE_RANK": str(machine),
            "MAIN_ADDRESS": own.address or self.link.master_address,
            "MAIN_PORT": str(MAIN_PORT),
            "PROCESSES_PER_NODE": str(plan.per_machine),
            "STRATEGY": plan.strategy,
            "CONFIG": str(plan.config),
            "GLOO_SOCKET_IFNAME": self.link.interface,
            "NCCL_SOCKET_IFNAME": self.link.interface,
            "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
            "TMPDIR": str(folder / "tmp"),
        }
        command = ["bash", str(_SCRIPT), *plan.overrides, *own.overrides]
        if own.modules is not None:
            command = ["sh", "-c", _FIRST_IN_PATH, str(own.modules), *command]
        group = processes(
            [self.link.command(machine, [*NAMED, f"machine{machine}", *command])],
            folder=folder,
            environment=environment,
        )
        self._groups.append(self._stack.enter_context(group))

    def codes(self) -> list[int | None]:
        """Return the exit code of each machine's launcher, None while it runs."""
        found = [group.started[0].poll() for group in self._groups]
        for machine, code in enumerate(found):
            if code is not None:
                self._ended.setdefault(machine, time.monotonic())
        return found

    def ended_at(self, machine: int) -> float:
        """Return when a machine was first seen to be over, as of `time.monotonic`."""
        return self._ended[machine]

    def await_end(self, timeout_s: float) -> bool:
        """Wait until all are over; return whether that came in time."""
        until = time.monotonic() + timeout_s
        while None in self.codes():
            if time.monotonic() > until:
                return False
            time.sleep(LOOK_EVERY_S)
        return True

    def printed(self, machine: int) -> str:
        """Return all that a machine has printed."""
        return self._groups[machine].printed()

    def processes_left(self) -> int:
        """Return how many processes there are on all machines."""
        return sum(len(self.link.processes(machine)) for machine in range(self._plan.machines))

    def end(self) -> None:
        """Kill what is left of them."""
        for group in self._groups:
            group.end()


@contextmanager
def machines(plan: Plan, folder: Path) -> Iterator[Machines]:
    """Yield machines that are joined but not started; they end with the block.

    Args:
        folder: for what they print, in a folder for each.
    """
    with linked(plan.rate_mbit_per_s, machines=plan.machines) as link, ExitStack() as stack:
        running = Machines(plan, link, folder, stack)
        stack.callback(running.end)
        yield running
