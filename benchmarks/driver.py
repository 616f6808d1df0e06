"""Measure arms: one process group each, their repeats taking turns.

All groups of a batch are started, and then wait without running while one of them at a time does
something. So each arm is measured throughout the same stretch of time as those it is compared
with, and what a machine does meanwhile falls on all alike.
"""

import math
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.arm import Order
from benchmarks.axes import Sweep
from benchmarks.fitting import batches, estimate_bytes, reason_to_skip
from benchmarks.group import Group, start_group
from toolkit.launch.links import Link, linked
from benchmarks.machine import (
    Machine,
    describe_environment,
    flops_per_token,
    peak_flops_per_s,
)
from benchmarks.record import Arm, Record, Split
from toolkit.launch.processes import ProcessError

FIRST_PORT = 29_600
"""For groups on links, which have all ports of their namespace to themselves."""


@dataclass(frozen=True)
class Driver:
    """Measures batches of arms.

    Attributes:
        name: the sweep's, for its records.
        sweep: how each arm is measured.
        machine: what they run on.
    """

    name: str | None
    sweep: Sweep
    machine: Machine

    def measure_all(self, missing: Mapping[Arm, Sequence[int]]) -> Iterator[Record]:
        """Yield a record for each repeat that is missing of an arm, and for each arm without any.

        Args:
            missing: arms, and which repeats of each.
        """
        fitting = []
        for arm in missing:
            reason = reason_to_skip(arm, self.machine)
            if reason is None:
                fitting.append(arm)
            else:
                yield Record(**self._heading(arm), skipped=reason)
        for batch in batches(fitting, self.machine, alive=self.sweep.alive):
            yield from self.measure({arm: missing[arm] for arm in batch})

    def measure(self, batch: Mapping[Arm, Sequence[int]]) -> Iterator[Record]:
        """Yield a record of each repeat as it is done, or one that says how an arm failed.

        Args:
            batch: arms that are kept at one time, on the same link, and which repeats of each.
        """
        with ExitStack() as stack:
            link = self._link(next(iter(batch)), stack)
            groups = {
                arm: stack.enter_context(self._start(arm, stack, link, FIRST_PORT + number))
                for number, arm in enumerate(batch)
            }
            # None is measured while others are still starting.
            for arm in list(groups):
                try:
                    groups[arm].connect(timeout_s=self.sweep.timeout_s)
                except ProcessError as error:
                    yield self._give_up(groups.pop(arm), error)
            yield from self._take_turns(groups, batch)
            for group in groups.values():
                group.release()

    def _link(self, arm: Arm, stack: ExitStack) -> Link | None:
        if arm.link_mbit_per_s is None:
            return None
        return stack.enter_context(linked(arm.link_mbit_per_s))

    def _start(self, arm: Arm, stack: ExitStack, link: Link | None, port: int) -> Any:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="arm-")))
        order = Order(
            arm=arm,
            shards=list(self.sweep.shards),
            warm_up_steps=self.sweep.warm_up_steps,
            split_steps=self.sweep.split_steps,
            timeout_s=self.sweep.timeout_s,
            address=str(folder / "socket"),
        )
        return start_group(order, folder=folder, threads=self.sweep.threads, link=link, port=port)

    def _take_turns(
        self, groups: dict[Arm, Group], batch: Mapping[Arm, Sequence[int]]
    ) -> Iterator[Record]:
        proofs: dict[Arm, dict[str, Any]] = {}
        for arm in list(groups):
            try:
                proofs[arm] = groups[arm].ask("prove", timeout_s=self.sweep.timeout_s)
            except ProcessError as error:
                yield self._give_up(groups.pop(arm), error)
        for repeat in range(self.sweep.repeats):
            # Every other round goes the other way, so that no arm always follows the same one.
            turns = list(groups)[:: -1 if repeat % 2 else 1]
            for arm in [arm for arm in turns if repeat in batch[arm]]:
                steps = steps_of(proofs[arm]["split"], self.sweep)
                try:
                    step_s = groups[arm].ask("repeat", steps, timeout_s=self.sweep.timeout_s)
                except ProcessError as error:
                    yield self._give_up(groups.pop(arm), error, repeat=repeat)
                else:
                    yield self._record(arm, repeat, proofs[arm], step_s)

    def _record(
        self, arm: Arm, repeat: int, proof: Mapping[str, Any], step_s: list[float]
    ) -> Record:
        tokens_per_s = arm.tokens_per_step * len(step_s) / sum(step_s)
        per_gpu = tokens_per_s / arm.world_size
        peak = peak_flops_per_s(self.machine.name, arm.precision)
        flops = flops_per_token(arm.model.model_sizes(), seq_len=arm.seq_len)
        return Record(
            **self._heading(arm),
            repeat=repeat,
            **proof,
            estimated_peak_memory_bytes=estimate_bytes(arm, self.machine.type),
            step_s=step_s,
            tokens_per_step=arm.tokens_per_step,
            tokens_per_s=tokens_per_s,
            tokens_per_s_per_gpu=per_gpu,
            mfu=None if peak is None else per_gpu * flops / peak,
        )

    def _give_up(self, group: Group, error: ProcessError, *, repeat: int = 0) -> Record:
        """End a group that failed, lest it runs on beside the others; return its record."""
        group.processes.end()
        return Record(**self._heading(group.arm), repeat=repeat, error=str(error))

    def _heading(self, arm: Arm) -> dict[str, Any]:
        environment = describe_environment(self.machine.name, threads=self.sweep.threads)
        return {"arm": arm, "sweep": self.name, "environment": environment}


def steps_of(split: Split, sweep: Sweep) -> int:
    """Return the steps of a repeat: those asked for, and as many as fill its time."""
    step_s = split.forward_s + split.backward_s + split.communication_s + split.optimizer_s
    return max(sweep.steps, math.ceil(sweep.seconds / step_s))
