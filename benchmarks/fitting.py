"""Which arms a machine can run, and how many of them it can keep at one time."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cache
from itertools import groupby

from toolkit.launch.links import links_unavailable
from benchmarks.machine import Machine
from benchmarks.record import Arm
from toolkit.engines.strategies import DEVICE_PRECISIONS, missing_engine, replicas_of
from toolkit.memory.calibration import Calibration, load_calibrations
from toolkit.memory.hardware import GIB
from toolkit.program.settings import Device, StepSettings
from toolkit.program.step import estimate_peak

PROCESS_BYTES = 600 * 2**20
"""What a rank on a CPU takes beside its tensors, rounded up: 312 MiB of memory of its own and 168
MiB of its launcher's, measured with torch 2.13 for CPUs, accelerate 1.15 and deepspeed 0.19.8."""


def estimate_bytes(arm: Arm, device: Device) -> int:
    """Return what one rank is expected to allocate at most."""
    return estimate_peak(settings_of(arm, device)).total


def settings_of(arm: Arm, device: Device) -> StepSettings:
    """Return the settings of an arm's step."""
    return StepSettings(
        sizes=arm.model.model_sizes(),
        strategy=arm.strategy,
        accumulation=arm.accumulation,
        world_size=arm.world_size,
        replicas=replicas_of(arm.strategy),
        micro_batch_size=arm.micro_batch_size,
        seq_len=arm.seq_len,
        grad_accum_steps=arm.grad_accum_steps,
        precision=arm.precision,
        optimizer=arm.optimizer,
        activation_checkpointing=arm.activation_checkpointing,
        loss=arm.loss,
        compile=arm.compile,
        device=device,
    )


def needed_bytes(arm: Arm, machine: Machine) -> int:
    """Return what an arm takes of `Machine.memory_bytes`: of each GPU, or of the host."""
    if machine.type == "cuda":
        calibration = load_calibrations().get(machine.name, Calibration())
        return calibration.device_bytes(estimate_bytes(arm, "cuda"))
    return arm.world_size * (estimate_bytes(arm, "cpu") + PROCESS_BYTES)


def reason_to_skip(arm: Arm, machine: Machine) -> str | None:
    """Return why an arm cannot run on this machine, or None."""
    if missing := missing_engine(arm.strategy):
        return missing
    if arm.precision not in DEVICE_PRECISIONS.get(machine.type, ("fp32",)):
        return f"{arm.precision} is not available on {machine.type}"
    if machine.type == "cuda" and arm.world_size > machine.gpus:
        return f"{arm.world_size} ranks need as many GPUs, and there are {machine.gpus}"
    if arm.link_mbit_per_s is not None:
        if arm.world_size != 2:
            return f"a link joins 2 ranks, not {arm.world_size}"
        if machine.type != "cpu":
            return "links are for ranks on CPUs"
        if reason := _links_unavailable():
            return reason
    needed = needed_bytes(arm, machine)
    if needed > machine.memory_bytes:
        return (
            f"an estimated {needed / GIB:.3g} GiB are needed and there are "
            f"{machine.memory_bytes / GIB:.3g} GiB"
        )
    return None


_links_unavailable = cache(links_unavailable)


def batches(arms: Sequence[Arm], machine: Machine, *, alive: int) -> Iterator[list[Arm]]:
    """Yield arms, in order, as many at a time as may be kept waiting for each other's turns.

    Arms that differ in strategy and mode alone are compared with each other, so they are kept
    together where they fit.

    Args:
        arms: each of which fits alone.
        machine: whose memory they share.
        alive: at most so many; all of one batch are on links of one rate.
    """

    def fits(some: Sequence[Arm]) -> bool:
        taken = sum(needed_bytes(arm, machine) for arm in some)
        links = {arm.link_mbit_per_s for arm in some}
        return len(some) <= alive and taken <= machine.memory_bytes and len(links) == 1

    compared = (list(some) for _, some in groupby(arms, key=lambda arm: arm.setting))
    parts = (part for some in compared for part in _fill(([arm] for arm in some), fits))
    return _fill(parts, fits)


def _fill(parts: Iterable[list[Arm]], fits: Callable[[Sequence[Arm]], bool]) -> Iterator[list[Arm]]:
    """Yield parts put together as long as they fit, none of them broken up."""
    whole: list[Arm] = []
    for part in parts:
        if whole and not fits([*whole, *part]):
            yield whole
            whole = []
        whole = [*whole, *part]
    if whole:
        yield whole
