"""The processes of one arm as the driver sees them: started, asked in turn, ended.

They connect to a socket of the driver's in the file system, which also serves processes in network
namespaces of their own.
"""

import socket
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

from benchmarks.arm import Order
from toolkit.launch.links import Link
from benchmarks.record import Arm
from toolkit.launch.processes import (
    LAUNCHER,
    Machine,
    ProcessError,
    Processes,
    launch_words,
    processes,
)
from toolkit.running_time import RunningTime

SCRIPT = "benchmarks.arm"
_LOOK_EVERY_S = 0.2


class Group:
    """All processes of an arm; `start_group` makes one."""

    def __init__(self, arm: Arm, processes: Processes, listener: socket.socket) -> None:
        self.arm = arm
        self.processes = processes
        self.listener = listener
        self.connections: list[Connection] = []

    def connect(self, *, timeout_s: float) -> None:
        """Wait until every rank has built its engine.

        Raises:
            ProcessError: a process failed, or they did not all come within `timeout_s` seconds.
        """
        clock = RunningTime()
        self.listener.settimeout(_LOOK_EVERY_S)
        while len(self.connections) < self.arm.world_size:
            with suppress(TimeoutError):
                self.connections.append(Connection(self.listener.accept()[0].detach()))
                continue
            if self.processes.any_ended:
                raise ProcessError(self.processes.last_error())
            if clock.read() > timeout_s:
                raise ProcessError(f"its processes did not start within {timeout_s:g} s")
        ranks = self._answers(timeout_s - clock.read())
        self.connections.sort(key=lambda connection: ranks[connection])

    def ask(self, name: str, *arguments: Any, timeout_s: float) -> Any:
        """Have every rank do something and return the answer of rank 0.

        Raises:
            ProcessError: a rank failed or died, or did not answer within `timeout_s` seconds.
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
                raise ProcessError(f"it did not answer within {timeout_s:.0f} s")
            for connection in ready:
                assert isinstance(connection, Connection)
                try:
                    error, answers[connection] = connection.recv()
                except (EOFError, ConnectionResetError):
                    error = self.processes.last_error()
                if error is not None:
                    raise ProcessError(error)
        return answers

    def release(self) -> None:
        """Let the processes end; returns at once."""
        self._send(None)

    def disconnect(self) -> None:
        """Close the connections."""
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
    interface = {"GLOO_SOCKET_IFNAME": link.interface} if link else {}
    commands = launch_commands(order.arm, order_file, link=link, port=port)
    with socket.socket(socket.AF_UNIX) as listener, ExitStack() as connections:
        listener.bind(order.address)
        listener.listen(order.arm.world_size)
        started = processes(commands, folder=folder, threads=threads, environment=interface)
        with started as ranks:
            group = Group(order.arm, ranks, listener)
            connections.callback(group.disconnect)
            yield group


def launch_commands(arm: Arm, order_file: Path, *, link: Link | None, port: int) -> list[list[str]]:
    """Return the `accelerate launch` lines of an arm: one, or one at each end of a link."""
    script = ["--module", SCRIPT, str(order_file)]
    if link is None:
        return [[*LAUNCHER, *launch_words(arm.strategy, arm.world_size, script)]]
    commands = []
    for rank in range(2):
        machine = Machine(rank, 2, link.master_address, port)
        words = launch_words(arm.strategy, arm.world_size, script, machine=machine)
        commands.append(link.command(rank, [*LAUNCHER, *words]))
    return commands
