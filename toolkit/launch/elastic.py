"""One machine's launcher in a run on machines that come and go: started anew in every round.

A round ends when one of its machines has gone, when another that has come can take part, or with
the run. Workers save where they still can, and the next round resumes from the newest checkpoint.
"""

import signal
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from toolkit.errors import HangError, Preempted
from toolkit.launch.launcher import STOPPED
from toolkit.launch.membership import Member, Membership, Round
from toolkit.launch.ownership import asking_signals, end, kill, start, stopping_together

SETTLE_S = 3.0
"""How long those who wait for a round wait for others, unless as many as are wanted are there."""
ENDING_S = 60.0
"""What the workers of a round get to save and end once those on one of its machines have."""
MOST_VAIN = 3
"""Rounds of the same machines that fail without a new checkpoint before the run is given up."""
_LOOK_EVERY_S = 0.2
_AGAIN = (1, HangError.exit_code, Preempted.exit_code, STOPPED, -signal.SIGKILL, -signal.SIGTERM)
"""Codes after which the next round resumes; after others it would only fail again."""


class Elastic:
    """Takes part in round after round until the run is over or a signal asks for the end.

    Args:
        members: of the run.
        least: machines without which no round begins.
        most: machines beyond which a round waits for no others.
        usable: how many of so many machines can train together.
        command: the launcher's, for this machine's rank among those of a round.
        saved: a value that changes as the run saves.
        recorded: a value that changes as it trains.
        log: prints a line.
    """

    def __init__(
        self,
        members: Membership,
        *,
        least: int,
        most: int,
        usable: Callable[[int], int],
        command: Callable[[int, Round], Sequence[str]],
        saved: Callable[[], object],
        recorded: Callable[[], object],
        log: Callable[[str], None],
    ) -> None:
        self.members = members
        self.least, self.most = least, most
        self.usable, self.command = usable, command
        self.saved, self.recorded = saved, recorded
        self.log = log
        self._process: subprocess.Popen[bytes] | None = None
        self._is_asked = False

    def run(self) -> int:
        """Return the code of the run, or of workers that a signal ended; from the main thread."""
        last, saved, vain = Round(0, {}), self.saved(), 0
        with self._listening(), self.members.present():
            while (current := self._next_round()) is not None:
                self.log(_describe(current))
                if self.members.name not in current.addresses:
                    continue
                is_vain = current.addresses == last.addresses and self.saved() == saved
                last, saved, vain = current, self.saved(), vain + 1 if is_vain else 0
                code = self._take_part(current)
                if self._is_asked:
                    return Preempted.exit_code if code in _AGAIN else code
                if code not in _AGAIN or vain == MOST_VAIN:
                    self.members.finish(current.number, code)
                    return code
            code_of_run = self.members.code()
            return Preempted.exit_code if code_of_run is None else code_of_run

    def _next_round(self) -> Round | None:
        """Return the round that begins next; None where the run is over or to be left."""
        number = self.members.newest().number + 1
        self.members.wait_for(number)
        present, since = [self.members.name], time.monotonic()
        while not self._is_asked and self.members.code() is None:
            if (newest := self.members.newest()).number >= number:
                return newest
            live = self.members.live()
            if (names := [member.name for member in live]) != present:
                present, since = names, time.monotonic()
            is_settled = time.monotonic() - since > SETTLE_S or len(live) >= self.most
            if is_settled and self._begins_here(live, number):
                self._begin(number, live)
            time.sleep(_LOOK_EVERY_S)
        return None

    def _begins_here(self, live: Sequence[Member], number: int) -> bool:
        """Whether this machine, the first there, finds that all wait for the round, and enough."""
        is_first = bool(live) and live[0].name == self.members.name
        return is_first and len(live) >= self.least and all(m.awaits == number for m in live)

    def _begin(self, number: int, live: Sequence[Member]) -> None:
        count = self.usable(min(len(live), self.most))
        if count == 0:
            return
        addresses = {member.name: member.address for member in live[:count]}
        self.members.begin(Round(number, addresses, waiting=len(live) - count))

    def _take_part(self, current: Round) -> int:
        """Train until the round ends; return the launcher's code."""
        rank = list(current.addresses).index(self.members.name)
        recorded = self.recorded()
        self._process = process = start(self.command(rank, current))
        try:
            if self._is_asked:
                process.send_signal(signal.SIGTERM)
            ending: float | None = None
            is_growing = False
            while process.poll() is None:
                live = self.members.live()
                if ending is None and self._is_ending(current, live):
                    ending = time.monotonic()
                is_late = ending is not None and time.monotonic() - ending > ENDING_S
                if is_late or self._has_lost(current, live):
                    self.log(f"machines   round {current.number}: a machine is lost")
                    break
                # Before the first step it has no handler that saves.
                if rank == 0 and not is_growing and self.recorded() != recorded:
                    is_growing = self._grows(current, live)
                    if is_growing:
                        self.log(f"machines   round {current.number}: another machine has come")
                        process.send_signal(signal.SIGTERM)
                time.sleep(_LOOK_EVERY_S)
        finally:
            end(process)
            self._process = None
        return int(process.returncode)

    def _is_ending(self, current: Round, live: Sequence[Member]) -> bool:
        """Whether a machine's part in the round is over."""
        part = [m for m in live if m.name in current.addresses and m.awaits == current.number]
        return len(part) < len(current.addresses)

    def _has_lost(self, current: Round, live: Sequence[Member]) -> bool:
        """Whether a machine is there no more and did not take its leave."""
        missing = current.addresses.keys() - {member.name for member in live}
        return not all(map(self.members.has_left, missing))

    def _grows(self, current: Round, live: Sequence[Member]) -> bool:
        """Whether more machines could train than do."""
        there = [m for m in live if m.name in current.addresses or m.awaits > current.number]
        return self.usable(min(len(there), self.most)) > len(current.addresses)

    @contextmanager
    def _listening(self) -> Iterator[None]:
        """Pass the first signal on, for the workers to save and end; at the second kill them."""

        def pass_on(number: int, frame: Any) -> None:
            process = self._process
            if process is not None and process.returncode is None:
                if self._is_asked:
                    kill(process)
                else:
                    process.send_signal(signal.SIGTERM)
            self._is_asked = True

        earlier = {number: signal.signal(number, pass_on) for number in asking_signals()}
        try:
            with stopping_together():
                yield
        finally:
            for number, handler in earlier.items():
                signal.signal(number, handler)


def _describe(found: Round) -> str:
    waiting = f", {found.waiting} wait" if found.waiting else ""
    return f"machines   round {found.number}: {len(found.addresses)} train{waiting}"
