"""What a step should take: computation, communication by the measured curve, and their overlap.

Pure: imports no torch. Nothing is fitted to step times. What a case computes comes from another
case's split (`compute_of`), what its collectives take from the machine profile, and which of them
there are, how large they are and what overlaps from the step's program (`toolkit.program`).
"""

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from benchmarks.fitting import estimate_bytes, settings_of
from benchmarks.record import Case, Record
from toolkit.errors import UsageError
from toolkit.prediction.machine_profile import MachineProfile
from toolkit.prediction.profiled import ProfiledNetwork
from toolkit.program.events import Collective
from toolkit.program.readers.held import read_held
from toolkit.program.readers.seconds import ComputeTimes, StepTime, read_seconds
from toolkit.program.settings import Device, StepSettings
from toolkit.program.step import write_step

MOST_SEQUENCES = 4096
"""Where the search for a break-even micro-batch ends."""


def predict_step(case: Case, compute: ComputeTimes, profiles: Sequence[MachineProfile]) -> StepTime:
    """Return the step time of a case.

    Args:
        case: what is timed.
        compute: what it computes.
        profiles: what collectives take over its link, in groups of every size that it has.

    Raises:
        UsageError: the strategy has no such mode, or no profile is of that link and group size.
    """
    fitting = [each for each in profiles if each.link_mbit_per_s == case.link_mbit_per_s]
    if not fitting:
        raise UsageError(f"no machine profile is of a link of {case.link_mbit_per_s} Mbit/s")
    settings = settings_of(case, "cuda" if fitting[0].backend == "nccl" else "cpu")
    missing = group_sizes(settings) - {profile.world_size for profile in fitting}
    if missing:
        raise UsageError(f"no machine profile is of {min(missing)} ranks over that link")
    return read_seconds(write_step(settings), compute, ProfiledNetwork(fitting, settings))


def group_sizes(settings: StepSettings) -> set[int]:
    """Return the sizes of the groups that a step communicates in."""
    events = write_step(settings).events
    return {settings.ranks_of(each.group) for each in events if isinstance(each, Collective)}


def break_even_micro_batch(
    case: Case,
    compute: ComputeTimes,
    profiles: Sequence[MachineProfile],
    *,
    tolerance: float = 0.05,
) -> int | None:
    """Return from how many sequences per micro-step on sharded accumulation costs next to nothing.

    Both passes are taken to grow in line with the micro-batch, so that a larger one hides, or at
    least outweighs, the reductions that sharded accumulation makes more often.

    Args:
        case: in either mode; its micro-batch does not matter.
        compute: of `case.micro_batch_size` sequences.
        profiles: what collectives take.
        tolerance: how much longer a step may take than with replicated accumulation.

    Returns:
        The micro-batch size, or None if `MOST_SEQUENCES` do not suffice.

    Raises:
        UsageError: as `predict_step`.
    """

    def suffices(sequences: int) -> bool:
        scaled = compute.scaled(sequences / case.micro_batch_size)
        sharded, replicated = (
            predict_step(in_mode(case, mode), scaled, profiles).step_s
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


def price_of_replicated(case: Case, device: Device) -> Price:
    """Return the price of accumulating a case's gradients whole.

    Raises:
        UsageError: the strategy has one of the modes only.
    """
    held, peaks = [], []
    for mode in ("replicated", "sharded"):
        one = in_mode(case, mode)
        held.append(read_held(write_step(settings_of(one, device))) or 0)
        peaks.append(estimate_bytes(one, device))
    return Price(held[0] - held[1], peaks[0] - peaks[1])


def in_mode(case: Case, mode: str) -> Case:
    """Return the case with another accumulation."""
    return case.model_copy(update={"accumulation": mode})


def compute_of(records: Sequence[Record], case: Case) -> ComputeTimes | None:
    """Return what a case computes, from the split of one that computes the same.

    The one with replicated accumulation on the fastest link, the machine's own above all; of the
    most micro-steps, since it averages over them. None if there is none. A split separates
    computation from waiting, so it may be of any link.
    """

    found = [
        record
        for record in records
        if record.split is not None
        and record.case.accumulation == "replicated"
        and _computation(record.case) == _computation(case)
    ]
    if not found:
        return None
    best = max(
        found,
        key=lambda r: (r.case.link_mbit_per_s or float("inf"), r.case.grad_accum_steps, -r.repeat),
    )
    micro_steps = best.case.grad_accum_steps
    assert best.split is not None
    return ComputeTimes(
        forward_s=best.split.forward_s / micro_steps,
        backward_s=best.split.backward_s / micro_steps,
        update_s=best.split.optimizer_s,
    )


def _computation(case: Case) -> dict[str, Any]:
    """Return all of a case that one micro-step's computation depends on."""
    return case.model_dump(exclude={"accumulation", "link_mbit_per_s", "grad_accum_steps"})
