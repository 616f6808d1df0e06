"""Measure the cases of a sweep: one process group each, their repeats taking turns."""

import math
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.axes import Sweep
from benchmarks.fitting import batches, estimate_bytes, reason_to_skip
from benchmarks.group import start_group, take_turns
from benchmarks.machine import Machine, describe_environment
from benchmarks.record import Case, Record, Split
from benchmarks.sweep_rank import SweepOrder
from toolkit.launch.links import Link, linked
from toolkit.launch.processes import LAUNCHER, ProcessError, launch_words
from toolkit.launch.processes import Machine as Place
from toolkit.model.flops import flops_per_token, peak_flops_per_s

FIRST_PORT = 29_600
"""For groups on links, which have all ports of their namespace to themselves."""


@dataclass(frozen=True)
class Driver:
    """Measures batches of cases.

    Attributes:
        name: the sweep's, for its records.
        sweep: how each case is measured.
        machine: what they run on.
    """

    name: str | None
    sweep: Sweep
    machine: Machine

    def measure_all(self, missing: Mapping[Case, Sequence[int]]) -> Iterator[Record]:
        """Yield a record for each repeat that is missing of a case, and for each case without any.

        Args:
            missing: cases, and which repeats of each.
        """
        reasons = {case: reason_to_skip(case, self.machine) for case in missing}
        for case, reason in reasons.items():
            if reason is not None:
                yield self._record(case, skipped=reason)
        fitting = [case for case, reason in reasons.items() if reason is None]
        for batch in batches(fitting, self.machine, alive=self.sweep.alive):
            yield from self.measure({case: missing[case] for case in batch})

    def measure(self, batch: Mapping[Case, Sequence[int]]) -> Iterator[Record]:
        """Yield a record of each repeat as it is done, or one with the error of a case that failed.

        Args:
            batch: cases that are kept at one time, on the same link, and which repeats of each.
        """
        rate = next(iter(batch)).link_mbit_per_s
        proofs: dict[Case, dict[str, Any]] = {}
        with ExitStack() as stack:
            link = None if rate is None else stack.enter_context(linked(rate))
            groups = {
                case: stack.enter_context(self._start(case, stack, link, FIRST_PORT + number))
                for number, case in enumerate(batch)
            }

            def repeat(case: Case, number: int) -> list[float] | None:
                if number not in batch[case]:
                    return None
                steps = steps_of(proofs[case]["split"], self.sweep)
                step_s: list[float] = groups[case].ask("repeat", steps)
                return step_s

            # None is measured while others are still starting.
            for case, _, failed in take_turns(groups, lambda case, _: groups[case].connect()):
                if failed:
                    yield self._record(case, error=str(failed))
            for case, _, found in take_turns(groups, lambda case, _: groups[case].ask("prove")):
                if isinstance(found, ProcessError):
                    yield self._record(case, error=str(found))
                else:
                    proofs[case] = found
            for case, number, step_s in take_turns(groups, repeat, rounds=self.sweep.repeats):
                if isinstance(step_s, ProcessError):
                    yield self._record(case, repeat=number, error=str(step_s))
                elif step_s:
                    timed = self._timed(case, proofs[case], step_s)
                    yield self._record(case, repeat=number, **proofs[case], **timed)
            for group in groups.values():
                group.release()

    def _start(self, case: Case, stack: ExitStack, link: Link | None, port: int) -> Any:
        order = SweepOrder(
            case=case,
            folder=Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="case-"))),
            timeout_s=self.sweep.timeout_s,
            shards=list(self.sweep.shards),
            warm_up_steps=self.sweep.warm_up_steps,
            split_steps=self.sweep.split_steps,
        )
        return start_group(
            order,
            launch_commands(case, order.file, link=link, port=port),
            threads=self.sweep.threads,
            environment={"GLOO_SOCKET_IFNAME": link.interface} if link else None,
        )

    def _timed(
        self, case: Case, proof: Mapping[str, Any], step_s: Sequence[float]
    ) -> dict[str, Any]:
        tokens_per_s = case.tokens_per_step * len(step_s) / sum(step_s)
        per_gpu = tokens_per_s / case.world_size
        peak = peak_flops_per_s(self.machine.name, case.precision)
        flops = flops_per_token(case.model, seq_len=case.seq_len)
        return {
            "estimated_peak_memory_bytes": estimate_bytes(case, self.machine.type),
            "step_s": step_s,
            "tokens_per_step": case.tokens_per_step,
            "tokens_per_s": tokens_per_s,
            "tokens_per_s_per_gpu": per_gpu,
            "mfu": None if peak is None else per_gpu * flops / peak,
        }

    def _record(self, case: Case, **fields: Any) -> Record:
        environment = describe_environment(self.machine.name, threads=self.sweep.threads)
        return Record(case=case, sweep=self.name, environment=environment, **fields)


def launch_commands(case: Case, order: Path, *, link: Link | None, port: int) -> list[list[str]]:
    """Return the `accelerate launch` lines of a case: one, or one at each end of a link."""
    script = ["--module", "benchmarks.sweep_rank", str(order)]
    if link is None:
        return [[*LAUNCHER, *launch_words(case.strategy, case.world_size, script)]]
    places = [Place(rank, 2, link.master_address, port) for rank in range(2)]
    words = [launch_words(case.strategy, case.world_size, script, machine=at) for at in places]
    return [link.command(rank, [*LAUNCHER, *words[rank]]) for rank in range(2)]


def steps_of(split: Split, sweep: Sweep) -> int:
    """Return the steps of a repeat: those asked for, and as many as fill its time."""
    step_s = split.forward_s + split.backward_s + split.communication_s + split.optimizer_s
    return max(sweep.steps, math.ceil(sweep.seconds / step_s))
