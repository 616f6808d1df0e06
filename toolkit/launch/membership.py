"""Which machines there are, and which train, by files in a folder that all of them share.

Each machine renews a file of its own; one whose file stays as it is has gone. Rounds are numbered,
and the first machine there writes who takes part in the next. No machine is special, so any may go;
torchrun's rendezvous (torch 2.13, `c10d`) is a store on one machine, without which all others end.
"""

import json
import os
import secrets
import shutil
import socket
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from threading import Event, Lock, Thread
from typing import Any

BEAT_S = 1.0
LOST_S = 10.0
"""Without a beat for so long, a machine has gone; more than NFS may keep attributes by default."""


@dataclass(frozen=True)
class Member:
    """What a machine's file holds.

    Attributes:
        name: its own, in the order in which machines came.
        host: for people.
        address: by which the others reach it.
        awaits: the round that it waits for, or takes part in.
        beat: another number each time.
    """

    name: str
    host: str
    address: str
    awaits: int
    beat: int


@dataclass(frozen=True)
class Round:
    """Who trains together.

    Attributes:
        number: rounds count from 1.
        addresses: by name, in the order of ranks.
        waiting: machines that are there and do not take part.
    """

    number: int
    addresses: Mapping[str, str]
    waiting: int = 0


class Membership:
    """One machine's place among the machines of a run.

    Args:
        folder: shared by all machines of the run, and theirs alone.
        address: by which the others reach this one.
    """

    def __init__(self, folder: Path, address: str) -> None:
        self.folder = folder
        self.name = f"{time.time_ns()}-{secrets.token_hex(3)}"
        self._address = address
        self._awaits = 0
        self._beat = 0
        self._beats: dict[str, tuple[int, float | None]] = {}
        self._earlier: set[Path] = set()
        self._left = Event()
        self._renewal = Lock()

    @contextmanager
    def present(self) -> Iterator[None]:
        """Be a member until the block ends; the last one takes the folder along."""
        self._earlier = set(self.folder.glob("over_*"))
        self._renew()
        thread = Thread(target=self._keep_renewing, name="membership", daemon=True)
        thread.start()
        try:
            yield
        finally:
            self._left.set()
            thread.join()
            self._file(self.name).unlink(missing_ok=True)
            if not self.live():
                shutil.rmtree(self.folder, ignore_errors=True)

    def live(self) -> list[Member]:
        """Return the machines that are there, the first to come first."""
        now = time.monotonic()
        found = {}
        for path in self.folder.glob("machine_*.json"):
            with suppress(FileNotFoundError):
                member = Member(**json.loads(path.read_text()))
                found[member.name] = member
        for name, member in found.items():
            beat, _ = self._beats.setdefault(name, (member.beat, None))
            if beat != member.beat or name == self.name:
                self._beats[name] = (member.beat, now)
        return [found[name] for name in sorted(found) if self._has_beaten(name, now)]

    def _has_beaten(self, name: str, now: float) -> bool:
        _, at = self._beats[name]
        return at is not None and now - at < LOST_S

    def has_left(self, name: str) -> bool:
        """Whether a machine has gone by itself, its part in the run over."""
        return not self._file(name).exists()

    def wait_for(self, number: int) -> None:
        """Have the others know that this machine waits for a round."""
        self._awaits = number
        self._renew()

    def newest(self) -> Round:
        """Return the newest round; before the first, number 0 without machines."""
        paths = sorted(self.folder.glob("round_*.json"))
        if not paths:
            return Round(0, {})
        return Round(**json.loads(paths[-1].read_text()))

    def begin(self, found: Round) -> None:
        """Write a round, unless another machine has."""
        self._write_new(f"round_{found.number:08d}.json", asdict(found))

    def finish(self, number: int, code: int) -> None:
        """Write that the run is over, for those who do not take part in its last round."""
        self._write_new(f"over_{number:08d}.json", {"code": code})

    def code(self) -> int | None:
        """Return how the run has ended since this machine came, None where it has not."""
        for path in set(self.folder.glob("over_*")) - self._earlier:
            return int(json.loads(path.read_text())["code"])
        return None

    def _keep_renewing(self) -> None:
        while not self._left.wait(BEAT_S):
            self._renew()

    def _renew(self) -> None:
        self._beat += 1
        path, host = self._file(self.name), socket.gethostname()
        partial = path.with_suffix(f".{os.getpid()}-{secrets.token_hex(3)}")
        # Else what the thread has begun to write could replace what is newer.
        with self._renewal:
            member = Member(self.name, host, self._address, self._awaits, self._beat)
            self._write(partial, asdict(member), lambda: partial.replace(path))

    def _file(self, name: str) -> Path:
        return self.folder / f"machine_{name}.json"

    def _write_new(self, name: str, fields: dict[str, Any]) -> None:
        """Write a file in one move unless it is there."""
        partial = self.folder / f".{name}.{self.name}"

        def place() -> None:
            with suppress(FileExistsError):
                os.link(partial, self.folder / name)
            partial.unlink()

        self._write(partial, fields, place)

    def _write(self, partial: Path, fields: dict[str, Any], place: Callable[[], object]) -> None:
        """Write a file and put it in its place, again if the folder goes meanwhile.

        Whoever leaves last takes it along, which may be while this machine comes.
        """
        while True:
            self.folder.mkdir(parents=True, exist_ok=True)
            with suppress(FileNotFoundError):
                partial.write_text(json.dumps(fields))
                place()
                return
