"""Which cases a machine can run, and how many of them it can keep at one time."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cache
from itertools import groupby

from benchmarks.machine import Machine
from benchmarks.record import Case
from toolkit.engines.strategies import DEVICE_PRECISIONS, missing_engine, replicas_of
from toolkit.launch.links import links_unavailable
from toolkit.memory.calibration import Calibration, load_calibrations
from toolkit.memory.hardware import GIB
from toolkit.program.settings import Device, StepSettings
from toolkit.program.step import estimate_peak

PROCESS_BYTES = 600 * 2**20
"""What a rank on a CPU takes beside its tensors, rounded up: 312 MiB of memory of its own and 168
MiB of its launcher's, measured with torch 2.13 for CPUs, accelerate 1.15 and deepspeed 0.19.8."""


def estimate_bytes(case: Case, device: Device) -> int:
    """Return what one rank is expected to allocate at most."""
    return estimate_peak(settings_of(case, device)).total


def settings_of(case: Case, device: Device) -> StepSettings:
    """Return the settings of a case's step."""
    return StepSettings(
        sizes=case.model,
        strategy=case.strategy,
        accumulation=case.accumulation,
        world_size=case.world_size,
        replicas=replicas_of(case.strategy),
        micro_batch_size=case.micro_batch_size,
        seq_len=case.seq_len,
        grad_accum_steps=case.grad_accum_steps,
        precision=case.precision,
        reduce=case.reduce,
        optimizer=case.optimizer,
        activation_checkpointing=case.activation_checkpointing,
        loss=case.loss,
        compile=case.compile,
        device=device,
    )


def needed_bytes(case: Case, machine: Machine) -> int:
    """Return what a case takes of `Machine.memory_bytes`: of each GPU, or of the host."""
    if machine.type == "cuda":
        calibration = load_calibrations().get(machine.name, Calibration())
        return calibration.device_bytes(estimate_bytes(case, "cuda"))
    return case.world_size * (estimate_bytes(case, "cpu") + PROCESS_BYTES)


def reason_to_skip(case: Case, machine: Machine) -> str | None:
    """Return why a case cannot run on this machine, or None."""
    if missing := missing_engine(case.strategy):
        return missing
    if case.precision not in DEVICE_PRECISIONS.get(machine.type, ("fp32",)):
        return f"{case.precision} is not available on {machine.type}"
    if machine.type == "cuda" and case.world_size > machine.gpus:
        return f"{case.world_size} ranks need as many GPUs, and there are {machine.gpus}"
    if case.link_mbit_per_s is not None:
        if case.world_size % 2:
            return f"a link joins 2 machines of as many ranks, not {case.world_size} ranks"
        if machine.type != "cpu":
            return "links are for ranks on CPUs"
        if reason := _links_unavailable():
            return reason
    needed = needed_bytes(case, machine)
    if needed > machine.memory_bytes:
        return (
            f"an estimated {needed / GIB:.3g} GiB are needed and there are "
            f"{machine.memory_bytes / GIB:.3g} GiB"
        )
    return None


_links_unavailable = cache(links_unavailable)


def batches(cases: Sequence[Case], machine: Machine, *, alive: int) -> Iterator[list[Case]]:
    """Yield cases, in order, as many at a time as may be kept waiting for each other's turns.

    Cases that differ in strategy and mode alone are compared with each other, so they are kept
    together where they fit.

    Args:
        cases: each of which fits alone.
        machine: whose memory they share.
        alive: at most so many; all of one batch are on links of one rate.
    """

    def fits(some: Sequence[Case]) -> bool:
        taken = sum(needed_bytes(case, machine) for case in some)
        links = {case.link_mbit_per_s for case in some}
        return len(some) <= alive and taken <= machine.memory_bytes and len(links) == 1

    compared = (list(some) for _, some in groupby(cases, key=lambda case: case.setting))
    parts = (part for some in compared for part in _fill(([case] for case in some), fits))
    return _fill(parts, fits)


def _fill(
    parts: Iterable[list[Case]], fits: Callable[[Sequence[Case]], bool]
) -> Iterator[list[Case]]:
    """Yield parts put together as long as they fit, none of them broken up."""
    whole: list[Case] = []
    for part in parts:
        if whole and not fits([*whole, *part]):
            yield whole
            whole = []
        whole = [*whole, *part]
    if whole:
        yield whole
