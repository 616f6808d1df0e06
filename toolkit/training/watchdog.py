"""Notices that a rank has stopped making progress, names it and the place, ends the process."""

import faulthandler
import json
import os
import signal
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from threading import Event, Thread

import psutil

from toolkit.engines.packages import WAITING
from toolkit.errors import HangError
from toolkit.launch.exit_code import leave_exit_code
from toolkit.running_time import RunningTime
from toolkit.training.callback import Callback, Progress

_LOOK_EVERY_S = 0.2
_SOONEST_S = 1e-3
_WAIT_FOR_OTHERS_S = 1.5
"""Ranks that wait for a hung one last moved a little later than it, so they notice later."""


@dataclass(frozen=True)
class Report:
    """What one rank reports once it hangs; `marks` counts how far it got."""

    rank: int
    marks: int
    step: int


class Watchdog(Callback):
    """One rank's part in noticing a hang.

    Python's own dumper, which needs no interpreter lock, writes the stacks `timeout_s` after the
    last `mark`, or up to a tenth of that before; a thread then reports and judges. A rank that is
    stopped or inside a call that keeps the lock leaves no report, which shows which one it is.
    Time in which this rank was stopped, as all are by Ctrl-Z, does not count.

    Args:
        folder: of the run; reports go to `hang/` in it, which is removed when nothing hung.
        rank: this process.
        world_size: number of processes.
        timeout_s: seconds without a mark that count as a hang.
        on_hang: called on one rank with the sentence and all stacks, before the process ends.
    """

    def __init__(
        self,
        folder: Path,
        *,
        rank: int,
        world_size: int,
        timeout_s: float,
        on_hang: Callable[[str, str], None],
    ) -> None:
        self.folder = folder / "hang"
        self.rank = rank
        self.world_size = world_size
        self.timeout_s = timeout_s
        self.on_hang = on_hang
        self.step = 0
        self._marks = 0
        self._time = RunningTime()
        self._seen_marks = 0
        self._last = self._dumped_from = self._dumper_due = 0.0
        self._closed = Event()
        self.folder.mkdir(exist_ok=True)
        self._report_file(rank).unlink(missing_ok=True)
        self._stacks = self._stacks_file(rank).open("w")
        self._set_dumper(0.0)
        self._thread = Thread(target=self._watch, name="watchdog", daemon=True)
        self._thread.start()

    def mark(self) -> None:
        """Note that there is progress."""
        self._marks += 1

    def at_start(self, progress: Progress) -> None:
        """Note from which step on there is progress."""
        self.step = progress.step
        self.mark()

    def after_step(self, progress: Progress, numbers: Sequence[float]) -> None:
        """Note that there is progress, and after how many steps."""
        self.at_start(progress)

    def close(self) -> None:
        """Stop watching."""
        self._closed.set()
        self._thread.join()
        faulthandler.cancel_dump_traceback_later()
        self._stacks.close()
        self._stacks_file(self.rank).unlink(missing_ok=True)
        try:
            self.folder.rmdir()
        except OSError:
            return  # other ranks still have their files there

    def _watch(self) -> None:
        while not self._closed.wait(_LOOK_EVERY_S):
            now = self._time.read()
            if self._marks != self._seen_marks:
                self._seen_marks, self._last = self._marks, now
            if now - self._last > self.timeout_s + _LOOK_EVERY_S:
                self._end()
            # The dumper's own clock does not stop, so it may have written too early.
            was_stopped = time.monotonic() > self._dumper_due and now - self._last < self.timeout_s
            if was_stopped or self._last - self._dumped_from > self.timeout_s / 10:
                self._set_dumper(now)

    def _set_dumper(self, now: float) -> None:
        """Have the stacks written `timeout_s` after the last mark.

        The dumper starts a thread each time, which is too much for every mark of a training step.
        """
        faulthandler.cancel_dump_traceback_later()
        self._stacks.seek(0)
        self._stacks.truncate()
        self._dumped_from = self._last
        remaining = max(self.timeout_s - (now - self._last), _SOONEST_S)
        self._dumper_due = time.monotonic() + remaining
        faulthandler.dump_traceback_later(remaining, file=self._stacks)

    def _end(self) -> None:
        """End this process, whatever goes wrong on the way: nobody may be left to report to."""
        try:
            self._report()
            reports = self._gather()
            if min(reports) != self.rank:
                time.sleep(2 * _WAIT_FOR_OTHERS_S)
                return
            try:
                self.on_hang(*self._judge(reports))
            finally:
                _kill_siblings()
        finally:
            leave_exit_code(HangError.exit_code)
            os._exit(HangError.exit_code)

    def _report(self) -> None:
        partial = self._report_file(self.rank).with_suffix(".tmp")
        partial.write_text(json.dumps(asdict(Report(self.rank, self._marks, self.step))))
        partial.replace(self._report_file(self.rank))

    def _gather(self) -> dict[int, Report]:
        """Return the reports of the ranks that still answer, this one's included."""
        until = time.monotonic() + _WAIT_FOR_OTHERS_S
        while True:
            paths = [self._report_file(rank) for rank in range(self.world_size)]
            reports = [Report(**json.loads(path.read_text())) for path in paths if path.exists()]
            if len(reports) == self.world_size or time.monotonic() > until:
                return {report.rank: report for report in reports}
            time.sleep(_LOOK_EVERY_S / 4)

    def _judge(self, reports: dict[int, Report]) -> tuple[str, str]:
        """Return the sentence and the stacks of all ranks."""
        stacks = {rank: self._read_stacks(rank) for rank in range(self.world_size)}
        silent = [rank for rank in stacks if rank not in reports]
        least = min(report.marks for report in reports.values())
        last = [rank for rank, report in reports.items() if report.marks == least]
        busy = [rank for rank in last if not _is_waiting(stacks[rank])]
        behind = silent or busy or last
        names = ", ".join(map(str, behind))
        sentence = (
            f"no progress for {self.timeout_s:g} s in step {reports[self.rank].step + 1}: "
            f"{'ranks' if len(behind) > 1 else 'rank'} {names} "
            f"{'does not answer' if silent else 'is behind'} {_place(stacks[behind[0]])}"
        )
        texts = [f"rank {rank}:\n{text or 'no stacks'}" for rank, text in stacks.items()]
        return sentence, "\n".join(texts)

    def _read_stacks(self, rank: int) -> str:
        path = self._stacks_file(rank)
        return path.read_text() if path.exists() else ""

    def _report_file(self, rank: int) -> Path:
        return self.folder / f"rank_{rank:05d}.json"

    def _stacks_file(self, rank: int) -> Path:
        return self.folder / f"rank_{rank:05d}.txt"


def _main_thread(stacks: str) -> list[str]:
    """Frames of the main thread, innermost first; the dumper writes that thread last."""
    frames = stacks.rsplit("Thread 0x", 1)[-1].splitlines()
    return [line.strip() for line in frames if line.strip().startswith("File ")]


def _is_waiting(stacks: str) -> bool:
    return any(part in frame for frame in _main_thread(stacks)[:3] for part in WAITING)


def _place(stacks: str) -> str:
    frames = _main_thread(stacks)
    return f"(in {frames[0].removeprefix('File ')})" if frames else "(no stacks)"


def _kill_siblings() -> None:
    """End this machine's other ranks; a stopped one would outlive the launcher's own signal."""
    own = psutil.Process()
    parent = own.parent()
    for process in parent.children() if parent else []:
        try:
            if process.pid != own.pid and process.cmdline() == own.cmdline():
                process.send_signal(signal.SIGKILL)
        except psutil.Error:
            continue
