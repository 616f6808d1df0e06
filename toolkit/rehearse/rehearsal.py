"""A rehearsal: machines start, a fault befalls the last one, and what comes of it is compared with
what must."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from toolkit.config import load_run_config
from toolkit.counted import counted
from toolkit.errors import HangError
from toolkit.launch.temporary import temporary_folder
from toolkit.rehearse.differences import NOBODYS_ADDRESS, difference
from toolkit.rehearse.faults import Ending, Fault
from toolkit.rehearse.machines import LOOK_EVERY_S, MAIN_PORT, Machines, Plan, machines
from toolkit.training.metrics import read_metrics
from toolkit.training.run_folder import run_folder

Log = Callable[[str], None]

PATIENCE_S = 300.0
"""Seconds without a step after which a rehearsal is given up; processes start within them."""
AFTER_TIMEOUT_S = 30.0
"""What processes get to end once `training.timeout_s` has passed."""
SLOWER = 10
_REPORTED_WITHIN_S = 90.0
_SHOWN_CHARACTERS = 2000
_SUBJECTS = {
    "other-config": "configuration",
    "other-data": "data",
    "other-code": "code",
    "other-version": "versions",
}


def rehearse(plan: Plan, fault: Fault, log: Log) -> list[str]:
    """Rehearse one fault on a run of its own; return what did not come as it must.

    Nothing is left behind, even if this process is killed: the run's folder and all that machines
    print are temporary.

    Args:
        plan: what is rehearsed.
        fault: what befalls the last machine.
        log: prints a line.

    Raises:
        UsageError: the configuration is wrong, or namespaces cannot be made.
    """
    with temporary_folder("rehearse-") as folder:
        own = replace(plan, overrides=(*plan.overrides, f"output_dir={folder}/runs"))
        return _Rehearsal(own, fault, folder, log).judged()


class _Rehearsal:
    def __init__(self, plan: Plan, fault: Fault, folder: Path, log: Log) -> None:
        self.plan = plan
        self.fault = fault
        self.folder = folder
        self.log = log
        self.last = plan.machines - 1
        self.config = load_run_config(plan.config, plan.overrides)
        self.metrics = run_folder(self.config) / "metrics.jsonl"

    def judged(self) -> list[str]:
        judge = {
            Ending.DONE: self._done,
            Ending.REFUSED: self._refused,
            Ending.REPORTED: self._reported,
            Ending.RESUMED: self._resumed,
        }[self.fault.ending]
        with self._machines("first") as running:
            self._start(running)
            problems = judge(running)
        if self.fault.ending is Ending.RESUMED and not problems:
            problems = self._next_start()
        return problems

    @contextmanager
    def _machines(self, name: str) -> Iterator[Machines]:
        with machines(self.plan, self.folder / name) as running:
            try:
                yield running
            finally:
                running.end()

    def _start(self, running: Machines) -> None:
        own = self.folder / "own"
        own.mkdir()
        for _ in range(self.last):
            running.start()
        if self.fault.name == "late-machine":
            time.sleep(self.fault.at_s or 0.0)
        running.start(difference(self.fault.name, self.config, own))

    def _done(self, running: Machines) -> list[str]:
        if self.fault.name == "slow-link":
            if problem := self._await_fault(running):
                return [problem]
            running.link.set_rate(self.last, self.plan.rate_mbit_per_s / SLOWER)
        self._await(running, lambda: None not in running.codes())
        return [*self._other_codes(running, (0,)), *self._steps_missing()]

    def _refused(self, running: Machines) -> list[str]:
        self._await(running, lambda: None not in running.codes())
        problems = self._other_codes(running, (2,))
        if self._trained():
            problems.append("the run trained before it was refused")
        words = (f"the ranks differ in {_SUBJECTS[self.fault.name]}: ", f"(machine{self.last})")
        for machine in range(self.plan.machines):
            if not all(word in running.printed(machine) for word in words):
                problems.append(f"machine{machine} does not name machine{self.last} and its fault")
                problems.append(self._tail(running, machine))
        return problems

    def _reported(self, running: Machines) -> list[str]:
        addresses = [running.link.master_address] * self.last + [NOBODYS_ADDRESS]
        waiting = dict(enumerate(f"{address}:{MAIN_PORT}" for address in addresses))
        until = time.monotonic() + _REPORTED_WITHIN_S
        while waiting and time.monotonic() < until:
            waiting = {m: at for m, at in waiting.items() if at not in running.printed(m)}
            time.sleep(LOOK_EVERY_S)
        return [
            f"machine{machine} has not printed {address} in {_REPORTED_WITHIN_S:g} s"
            for machine, address in waiting.items()
        ]

    def _resumed(self, running: Machines) -> list[str]:
        if problem := self._await_fault(running):
            return [problem]
        running.link.take_down(self.last)
        survivors = range(self.plan.machines)
        if self.fault.name == "kill-machine":
            running.link.kill(self.last)
            survivors = range(self.last)
        began = time.monotonic()
        limit_s = self.config.training.timeout_s + AFTER_TIMEOUT_S
        if not running.await_end(limit_s):
            still = [m for m, code in enumerate(running.codes()) if code is None]
            names = ", ".join(f"machine{machine}" for machine in still)
            return [f"{names} had not ended {limit_s:g} s after the fault"]
        for machine in survivors:
            took_s = running.ended_at(machine) - began
            code = running.codes()[machine]
            self.log(f"machine{machine} ended with {code} {took_s:.1f} s after the fault")
        problems = self._other_codes(running, (4, 75), among=survivors)
        if left := running.processes_left():
            problems.append(f"{counted(left, 'process', 'processes')} left")
        return problems

    def _next_start(self) -> list[str]:
        before, saved = self._trained(), self._saved()
        with self._machines("second") as running:
            for _ in range(self.plan.machines):
                running.start()
            self._await(running, lambda: None not in running.codes())
            problems = [*self._other_codes(running, (0,)), *self._steps_missing()]
        after = self._trained()
        if differing := [step for step, values in before.items() if after.get(step) != values]:
            problems.append(f"step {differing[0]} is another than before the fault")
        if not problems:
            repeated = counted(len(before) - saved, "step")
            self.log(f"next start resumed after step {saved}, {repeated} repeated bit for bit")
        return problems

    def _await_fault(self, running: Machines) -> str | None:
        """Wait until it is time for the fault; return why there is none."""
        self._await(running, lambda: bool(self._trained()) or running.codes() != self._none_ended())
        time.sleep(self.fault.at_s or 0.0)
        if running.codes() == self._none_ended():
            return None
        tail = self._tail(running, 0)
        return f"the run was over before {self.fault}; choose an earlier one or more steps\n{tail}"

    def _none_ended(self) -> list[int | None]:
        return [None] * self.plan.machines

    def _await(self, running: Machines, condition: Callable[[], bool]) -> None:
        """Wait for as long as there is progress.

        Raises:
            HangError: there was none for `PATIENCE_S`.
        """
        seen, until = -1, 0.0
        while not condition():
            size = self.metrics.stat().st_size if self.metrics.exists() else 0
            if size != seen:
                seen, until = size, time.monotonic() + PATIENCE_S
            if time.monotonic() > until:
                printed = self._tail(running, 0)
                raise HangError(f"{self.fault}: no step in {PATIENCE_S:g} s\n{printed}")
            time.sleep(LOOK_EVERY_S)

    def _trained(self) -> dict[int, tuple[Any, ...]]:
        """Return loss, gradient norm and learning rate of each step that the run has recorded."""
        records = [r for r in read_metrics(self.metrics) if r["kind"] == "train"]
        return {r["step"]: (r["loss"], r["grad_norm"], r["lr"]) for r in records}

    def _saved(self) -> int:
        """Return the step of the newest checkpoint, 0 where there is none."""
        found = (self.metrics.parent / "checkpoints").glob("step_*[0-9]")
        return max((int(path.name.removeprefix("step_")) for path in found), default=0)

    def _steps_missing(self) -> list[str]:
        expected = list(range(1, self.config.training.last_step + 1))
        found = list(self._trained())
        return [] if found == expected else [f"{len(found)} of {len(expected)} steps were trained"]

    def _other_codes(
        self, running: Machines, codes: tuple[int, ...], *, among: range | None = None
    ) -> list[str]:
        """Return a sentence for each machine that ended otherwise, with what it printed last."""
        found = running.codes()
        return [
            f"machine{machine} ended with {found[machine]}\n{self._tail(running, machine)}"
            for machine in among or range(self.plan.machines)
            if found[machine] not in codes
        ]

    def _tail(self, running: Machines, machine: int) -> str:
        return running.printed(machine)[-_SHOWN_CHARACTERS:]
