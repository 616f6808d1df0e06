"""The processes of one arm as the driver sees them: started, asked in turn, ended.

They connect to a socket of the driver's in the file system, which also serves processes in network
namespaces of their own.
"""

import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

from benchmarks.arm import Order
from benchmarks.links import Link
from benchmarks.record import Arm
from toolkit.errors import ToolkitError
from toolkit.launch.ownership import end, start, stopping_together
from toolkit.running_time import RunningTime
from toolkit.shipped import find_launch_file

ROOT = Path(__file__).parent.parent
SCRIPT = "benchmarks.arm"
_LOOK_EVERY_S = 0.2
END_S = 30.0
"""What processes that are asked to end get for it."""


class ArmError(ToolkitError):
    """The processes of an arm failed, or did not answer; the message is one sentence."""


class Group:
    """All processes of an arm; `start_group` makes one."""

    def __init__(
        self,
        arm: Arm,
        launchers: Sequence[subprocess.Popen[bytes]],
        listener: socket.socket,
        log: Path,
    ) -> None:
        self.arm = arm
        self.launchers = launchers
        self.listener = listener
        self.log = log
        self.connections: list[Connection] = []

    def connect(self, *, timeout_s: float) -> None:
        """Wait until every rank has built its engine.

        Raises:
            ArmError: a process failed, or they did not all come within `timeout_s` seconds.
        """
        clock = RunningTime()
        self.listener.settimeout(_LOOK_EVERY_S)
        while len(self.connections) < self.arm.world_size:
            with suppress(TimeoutError):
                self.connections.append(Connection(self.listener.accept()[0].detach()))
                continue
            if any(launcher.poll() is not None for launcher in self.launchers):
                raise ArmError(self._last_words())
            if clock.read() > timeout_s:
                raise ArmError(f"its processes did not start within {timeout_s:g} s")
        ranks = self._answers(timeout_s - clock.read())
        self.connections.sort(key=lambda connection: ranks[connection])

    def ask(self, name: str, *arguments: Any, timeout_s: float) -> Any:
        """Have every rank do something and return the answer of rank 0.

        Raises:
            ArmError: a rank failed or died, or they did not all answer within `timeout_s` seconds.
        """
        self._send((name, arguments))
        return self._answers(timeout_s)[self.connections[0]]

    def _send(self, command: tuple[str, tuple[Any, ...]] | None) -> None:
        for connection in self.connections:
            with suppress(OSError):
                connection.send(command)

    def _answers(self, timeout_s: float) -> dict[Connection, Any]:
        """Return what each rank answers; the first that fails speaks for all."""
        clock = RunningTime()
        answers: dict[Connection, Any] = {}
        while len(answers) < len(self.connections):
            pending = [one for one in self.connections if one not in answers]
            ready = wait(pending, _LOOK_EVERY_S)
            if not ready and clock.read() > timeout_s:
                raise ArmError(f"it did not answer within {timeout_s:.0f} s")
            for connection in ready:
                assert isinstance(connection, Connection)
                try:
                    error, answers[connection] = connection.recv()
                except (EOFError, ConnectionResetError):
                    error = self._last_words()
                if error is not None:
                    raise ArmError(error)
        return answers

    def _last_words(self) -> str:
        """Return what the processes said last, once their launcher has had its say."""
        for launcher in self.launchers:
            with suppress(subprocess.TimeoutExpired):
                launcher.wait(END_S / 3)
        printed = self.log.read_text(errors="replace")
        lines = [line for line in printed.splitlines() if line.strip()]
        errors = [line.partition("error: ")[2] for line in lines if line.startswith("error: ")]
        return (errors or lines or ["its processes ended without a word"])[-1].strip()

    def release(self) -> None:
        """Let the processes end; returns at once."""
        self._send(None)

    def close(self, *, grace_s: float) -> None:
        """Wait for the processes to end, and kill what is left then."""
        deadline = time.monotonic() + grace_s
        for launcher in self.launchers:
            with suppress(subprocess.TimeoutExpired):
                launcher.wait(max(0.0, deadline - time.monotonic()))
            end(launcher)
        for connection in self.connections:
            connection.close()


@contextmanager
def start_group(
    order: Order, *, folder: Path, threads: int, link: Link | None, port: int
) -> Iterator[Group]:
    """Start an arm's processes; returns before they are ready.

    Args:
        order: what they are to do.
        folder: for their socket and what they print; must be empty.
        threads: of each rank.
        link: what joins the two ranks, where it is not the machine's own.
        port: for ranks on a link to meet at; others find a free one.
    """
    order_file = folder / "order.json"
    order_file.write_text(order.model_dump_json())
    with socket.socket(socket.AF_UNIX) as listener, (folder / "log").open("ab") as log:
        listener.bind(order.address)
        listener.listen(order.arm.world_size)
        environment = {
            **os.environ,
            # A person's own `accelerate config` must not leak into a benchmark.
            "HF_HOME": str(folder / "empty"),
            "OMP_NUM_THREADS": str(threads),
            "PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")]),
            **({"GLOO_SOCKET_IFNAME": link.interface} if link else {}),
        }
        commands = launch_commands(order.arm, order_file, link=link, port=port)
        with stopping_together():
            launchers = [
                start(command, env=environment, stdout=log, stderr=log) for command in commands
            ]
            group = Group(order.arm, launchers, listener, folder / "log")
            grace_s = 0.0
            try:
                yield group
                grace_s = END_S
            finally:
                group.close(grace_s=grace_s)


def launch_commands(arm: Arm, order_file: Path, *, link: Link | None, port: int) -> list[list[str]]:
    """Return the `accelerate launch` lines of an arm: one, or one at each end of a link."""
    launcher = [sys.executable, "-m", "toolkit.launch.launcher", "launch"]
    launcher += ["--config_file", str(find_launch_file(arm.strategy))]
    launcher += ["--num_processes", str(arm.world_size)]
    script = ["--module", SCRIPT, str(order_file)]
    if link is None:
        return [[*launcher, *script]]
    launcher += ["--num_machines", "2", "--main_process_ip", link.master_address]
    launcher += ["--main_process_port", str(port)]
    if arm.strategy.startswith("zero"):
        # DeepSpeed's own default logs into the other machine.
        launcher += ["--deepspeed_multinode_launcher", "standard"]
    return [
        link.command(rank, [*launcher, "--machine_rank", str(rank), *script]) for rank in range(2)
    ]
