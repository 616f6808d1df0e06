"""How long `toolkit verify` is going to take, about."""

import os
from collections.abc import Mapping, Sequence

from toolkit.model.sizes import ModelSizes
from toolkit.verify.cases import SEQUENCES_PER_STEP, Case
from toolkit.verify.verdict import Launch, reference_of

# CPU seconds on a core of an AMD EPYC with torch 2.13: the launcher and each process's start as
# launches with one case need them; a case of a process, so that the default set comes to the 324
# that it was measured to need; compiling the blocks; and the fp32 arithmetic of a second.
LAUNCHER_S = 3.0
START_S = 4.0
CASE_S = 0.9
COMPILE_S = 15.0
FLOP_PER_S = 2e10
FLOP_PER_PARAMETER_AND_TOKEN = 6
"""Two for the forward pass, four for the backward pass (Kaplan et al. 2020, section 2.1)."""

REFERENCE_PASSES = 3
"""Of one fp32 pass's time: fp32, and fp64 at half its speed."""


def expected_seconds(
    cases: Mapping[Launch, Sequence[Case]], sizes: ModelSizes, *, cores: int | None = None
) -> float:
    """Return about how long launches one after another take, with their references.

    Args:
        cases: of each launch, its faults put in on purpose as well.
        sizes: the model.
        cores: those of this machine by default.
    """
    cores = cores or os.cpu_count() or 1
    total = 0.0
    references: dict[object, float] = {}
    for launch, own_cases in cases.items():
        own = START_S + sum(CASE_S + COMPILE_S * case.compile for case in own_cases)
        arithmetic = sum(_arithmetic_s(case, sizes) for case in own_cases)
        total += LAUNCHER_S + max(1, launch.world_size / cores) * own
        total += arithmetic / min(cores, launch.world_size)
        references |= {reference_of(case): _arithmetic_s(case, sizes) for case in own_cases}
    return total + REFERENCE_PASSES * sum(references.values()) / cores


def _arithmetic_s(case: Case, sizes: ModelSizes) -> float:
    """Seconds of one core for a case's updates."""
    tokens = SEQUENCES_PER_STEP * sizes.block_size * case.steps
    parameters = case.model(sizes).parameter_count
    return FLOP_PER_PARAMETER_AND_TOKEN * parameters * tokens / FLOP_PER_S
