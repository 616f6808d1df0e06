"""The processes of one case as their driver sees them: started, asked in turn, ended.

They connect to a socket of the driver's in the file system (`benchmarks.rank`), which also serves
processes in network namespaces of their own. While one group does something the others wait,
blocked in a read, and take no processor time. So all cases are measured throughout the same stretch
of time, and what a machine does meanwhile falls on all alike.
"""

import socket
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any, TypeVar

from pydantic import BaseModel

from benchmarks.record import Case
from toolkit.launch.processes import ProcessError, Processes, processes
from toolkit.running_time import RunningTime

_LOOK_EVERY_S = 0.2
Key = TypeVar("Key")


class Order(BaseModel):
    """What the processes of a case are to do.

    Attributes:
        folder: for their socket and what they print; must be empty.
        timeout_s: for whatever they do in one go.
    """

    case: Case
    folder: Path
    timeout_s: float

    @property
    def address(self) -> str:
        """The driver's socket."""
        return str(self.folder / "socket")

    @property
    def file(self) -> Path:
        """Where the processes find the order."""
        return self.folder / "order.json"


class Group:
    """All processes of a case; `start_group` makes one."""

    def __init__(self, order: Order, processes: Processes, listener: socket.socket) -> None:
        self.order = order
        self.processes = processes
        self.listener = listener
        self.connections: list[Connection] = []

    def connect(self) -> None:
        """Wait until every rank is ready.

        Raises:
            ProcessError: a process failed, or they did not all come in time.
        """
        clock, timeout_s = RunningTime(), self.order.timeout_s
        self.listener.settimeout(_LOOK_EVERY_S)
        while len(self.connections) < self.order.case.world_size:
            with suppress(TimeoutError):
                self.connections.append(Connection(self.listener.accept()[0].detach()))
                continue
            if self.processes.any_ended:
                raise ProcessError(self.processes.last_error())
            if clock.read() > timeout_s:
                raise ProcessError(f"its processes did not start within {timeout_s:g} s")
        ranks = self._answers()
        self.connections.sort(key=lambda connection: ranks[connection])

    def ask(self, name: str, *arguments: Any) -> Any:
        """Have every rank do something and return the answer of rank 0.

        Raises:
            ProcessError: a rank failed or died, or did not answer in time.
        """
        self._send((name, arguments))
        return self._answers()[self.connections[0]]

    def _send(self, command: tuple[str, tuple[Any, ...]] | None) -> None:
        for connection in self.connections:
            with suppress(OSError):
                connection.send(command)

    def _answers(self) -> dict[Connection, Any]:
        """Return what each rank answers; the first that fails fails all."""
        clock = RunningTime()
        answers: dict[Connection, Any] = {}
        while len(answers) < len(self.connections):
            pending = [one for one in self.connections if one not in answers]
            ready = wait(pending, _LOOK_EVERY_S)
            if not ready and clock.read() > self.order.timeout_s:
                raise ProcessError(f"it did not answer within {self.order.timeout_s:.0f} s")
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
    order: Order,
    commands: Sequence[Sequence[str]],
    *,
    threads: int = 1,
    environment: Mapping[str, str] | None = None,
) -> Iterator[Group]:
    """Start a case's processes, which read the order's file; returns before they are ready.

    Args:
        order: what they are to do.
        commands: one for each launcher.
        threads: of each rank.
        environment: variables on top of this process's own.
    """
    order.file.write_text(order.model_dump_json())
    with socket.socket(socket.AF_UNIX) as listener, ExitStack() as connections:
        listener.bind(order.address)
        listener.listen(order.case.world_size)
        started = processes(commands, folder=order.folder, threads=threads, environment=environment)
        with started as ranks:
            group = Group(order, ranks, listener)
            connections.callback(group.disconnect)
            yield group


def take_turns(
    groups: dict[Key, Group], act: Callable[[Key, int], Any], *, rounds: int = 1
) -> Iterator[tuple[Key, int, Any]]:
    """Have each group do something in every round, one at a time.

    Every other round goes the other way, so that no case always follows the same one.

    Args:
        groups: one that fails is ended, lest it runs on beside the others, and taken out.
        act: given a group's key and the round.
        rounds: how many.

    Yields:
        Key, round, and what `act` returned or the `ProcessError` that it raised.
    """
    for number in range(rounds):
        for key in list(groups)[:: -1 if number % 2 else 1]:
            try:
                found = act(key, number)
            except ProcessError as error:
                groups.pop(key).processes.end()
                found = error
            yield key, number, found
