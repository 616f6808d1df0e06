"""What a step should take: computation, communication by the measured curve, and their overlap.

Pure: imports no torch. Nothing is fitted to step times. What an arm computes comes from another
arm's split (`compute_of`), what its collectives take from the machine profile, their payloads from
the byte formulas, and what overlaps from the engine (`benchmarks.step_walk`).
"""

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from benchmarks.timeline import Compute

from benchmarks.fitting import estimate_bytes
from benchmarks.machine_profile import MachineProfile
from benchmarks.record import Arm, Record
from benchmarks.step_walk import DdpWalk, Fsdp2Walk, StepWalk
from benchmarks.zero_walk import Zero3Walk, Zero12Walk
from toolkit.backends.held_gradients import held_gradient_bytes
from toolkit.backends.strategies import Strategy, check_accumulation, replicas_of
from toolkit.errors import UsageError
from toolkit.program.settings import Device

WALKS: dict[Strategy, type[StepWalk]] = {
    "single": StepWalk,
    "ddp": DdpWalk,
    "fsdp2": Fsdp2Walk,
    "fsdp2_no_reshard": Fsdp2Walk,
    "zero1": Zero12Walk,
    "zero2": Zero12Walk,
    "zero3": Zero3Walk,
}
MOST_SEQUENCES = 4096
"""Where the search for a break-even micro-batch ends."""


@dataclass(frozen=True)
class Prediction:
    """Seconds of one optimizer step.

    Attributes:
        step_s: all of it.
        communication_s: of its collectives.
        exposed_s: of those, what the computation does not hide.
    """

    step_s: float
    communication_s: float
    exposed_s: float


def predict_step(arm: Arm, compute: Compute, profile: MachineProfile) -> Prediction:
    """Return the step time of an arm.

    Raises:
        UsageError: the strategy has no such mode, the profile has other ranks or another link, or
            the arm's collectives run in groups that no profile measures.
    """
    check_accumulation(arm.strategy, arm.accumulation)
    if arm.strategy not in WALKS:
        raise UsageError(f"{arm.strategy} communicates in groups of ranks, which are not measured")
    if arm.strategy != "single" and arm.world_size != profile.world_size:
        raise UsageError(f"the profile is of {profile.world_size} ranks, not {arm.world_size}")
    if arm.link_mbit_per_s != profile.link_mbit_per_s:
        raise UsageError(
            f"the profile's link is {profile.link_mbit_per_s} Mbit/s, not {arm.link_mbit_per_s}"
        )
    timeline = WALKS[arm.strategy](arm, compute, profile).walk()
    return Prediction(timeline.now_s, timeline.communication_s, timeline.exposed_s)


def break_even_micro_batch(
    arm: Arm, compute: Compute, profile: MachineProfile, *, tolerance: float = 0.05
) -> int | None:
    """Return from how many sequences per micro-step on sharded accumulation costs next to nothing.

    Both passes are taken to grow in line with the micro-batch, so that a larger one hides, or at
    least outweighs, the reductions that sharded accumulation makes more often.

    Args:
        arm: in either mode; its micro-batch does not matter.
        compute: of `arm.micro_batch_size` sequences.
        profile: what collectives take.
        tolerance: how much longer a step may take than with replicated accumulation.

    Returns:
        The micro-batch size, or None if `MOST_SEQUENCES` do not suffice.

    Raises:
        UsageError: as `predict_step`.
    """

    def suffices(sequences: int) -> bool:
        scaled = compute.scaled(sequences / arm.micro_batch_size)
        sharded, replicated = (
            predict_step(in_mode(arm, mode), scaled, profile).step_s
            for mode in ("sharded", "replicated")
        )
        return sharded <= (1 + tolerance) * replicated

    found = bisect_left(range(1, MOST_SEQUENCES + 1), True, key=suffices) + 1
    return found if found <= MOST_SEQUENCES else None


@dataclass(frozen=True)
class Price:
    """What replicated accumulation holds more than sharded, in bytes on one rank.

    Attributes:
        gradient_bytes: between micro-steps.
        peak_bytes: at the peak of a step, by `toolkit.memory`; the price in memory needed.
    """

    gradient_bytes: int
    peak_bytes: int


def price_of_replicated(arm: Arm, device: Device) -> Price:
    """Return the price of accumulating an arm's gradients whole.

    Raises:
        UsageError: the strategy has one of the modes only.
    """
    held, peaks = [], []
    for mode in ("replicated", "sharded"):
        one = in_mode(arm, mode)
        check_accumulation(one.strategy, one.accumulation)
        held.append(
            held_gradient_bytes(
                one.strategy,
                one.accumulation,
                precision=one.precision,
                sizes=one.model.model_sizes(),
                world_size=one.world_size,
                replicas=replicas_of(one.strategy),
            )
        )
        peaks.append(estimate_bytes(one, device))
    return Price(held[0] - held[1], peaks[0] - peaks[1])


def in_mode(arm: Arm, mode: str) -> Arm:
    """Return the arm with another accumulation."""
    return arm.model_copy(update={"accumulation": mode})


def compute_of(records: Sequence[Record], arm: Arm) -> Compute | None:
    """Return what an arm computes, from the split of one that computes the same.

    The one with replicated accumulation on the fastest link, the machine's own above all; of the
    most micro-steps, since it averages over them. None if there is none. A split tells computation
    from waiting, so it may be of any link.
    """

    found = [
        record
        for record in records
        if record.split is not None
        and record.arm.accumulation == "replicated"
        and _computation(record.arm) == _computation(arm)
    ]
    if not found:
        return None
    best = max(
        found,
        key=lambda r: (r.arm.link_mbit_per_s or float("inf"), r.arm.grad_accum_steps, -r.repeat),
    )
    micro_steps = best.arm.grad_accum_steps
    assert best.split is not None
    return Compute(
        forward_s=best.split.forward_s / micro_steps,
        backward_s=best.split.backward_s / micro_steps,
        update_s=best.split.optimizer_s,
    )


def _computation(arm: Arm) -> dict[str, Any]:
    """Return all of an arm that one micro-step's computation depends on."""
    return arm.model_dump(exclude={"accumulation", "link_mbit_per_s", "grad_accum_steps"})
