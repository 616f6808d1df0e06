"""Which launches and cases, and running them one launch after another."""

import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import torch

from toolkit.engines.mixture import covering_mixtures
from toolkit.engines.reduction import possible_reductions, reduction_of
from toolkit.engines.strategies import (
    REPLICAS,
    Accumulation,
    Precision,
    Strategy,
    impossible_on,
    possible_accumulations,
)
from toolkit.errors import ToolkitError
from toolkit.launch.processes import launch as start
from toolkit.model.sizes import ModelSizes
from toolkit.verify import worker
from toolkit.verify.cases import SEQUENCES_PER_STEP, TINY, VARIANT_STEPS, Case
from toolkit.verify.controls import CONTROLS, Control
from toolkit.verify.outcome import FOUND, Outcome, Work
from toolkit.verify.verdict import Launch, Verdict, judge

Mixtures = Literal["mixtures"]
MIXTURES: Mixtures = "mixtures"
"""Beside the modes: those that differ by unit."""
COMPILED: Strategy = "ddp"
"""The strategy that also runs compiled; compiling takes longer than all else."""


@dataclass(frozen=True)
class Caught:
    """What became of a control: the first check that caught it, or None."""

    name: str
    strategy: Strategy
    by: str | None

    def to_json(self) -> dict[str, Any]:
        """Return the object that `--json` prints for a control."""
        return {**vars(self), "caught": self.by is not None}


@dataclass(frozen=True)
class LaunchReport:
    """The verdicts on one launch."""

    verdicts: list[Verdict]
    controls: list[Caught]


def not_run(launch: Launch) -> str | None:
    """Return why a launch cannot exist here, or None if it can."""
    if reason := impossible_on(launch.strategy, launch.world_size):
        return reason
    if SEQUENCES_PER_STEP % launch.world_size:
        return f"{SEQUENCES_PER_STEP} sequences do not divide by {launch.world_size} processes"
    return None


def plan_launches(strategies: Sequence[Strategy], world_sizes: Sequence[int]) -> list[Launch]:
    """Return every strategy at every world size; without sizes, each at the smallest it can have.

    `not_run` names those that cannot exist.
    """
    smallest = {"single": 1, "hsdp": 2 * REPLICAS}
    return [
        Launch(strategy, size)
        for strategy in strategies
        for size in world_sizes or [smallest.get(strategy, 2)]
    ]


def cases_of(
    launch: Launch,
    *,
    accumulations: Sequence[Accumulation | Mixtures],
    grad_accum_steps: Sequence[int],
    precisions: Sequence[Precision],
    steps: int,
    blocks: int = TINY.n_layer,
) -> list[Case]:
    """Return the cases of a launch: every mode it can accumulate in, with both optimizers.

    The first mode also runs, for a few steps, unclipped, with an incomplete last window, with
    dropout, with the chunked loss, with activation checkpointing, with GPT-2's whole vocabulary
    and, under one strategy, compiled. Mixtures of a model of so many `blocks` run a few steps with
    the most micro-steps, in each precision, and so does every mode in each other reduction.
    """
    modes = [mode for mode in possible_accumulations(launch.strategy) if mode in accumulations]
    most = max(grad_accum_steps)
    cases = [
        Case(
            accumulation=mode,
            grad_accum_steps=count,
            precision=precision,
            optimizer=optimizer,
            steps=steps,
        )
        for precision in precisions
        for mode in modes
        for count in grad_accum_steps
        for optimizer in ("sgd", "adamw")
    ]
    if most > 1 and MIXTURES in accumulations:
        for precision in precisions:
            cases += _mixtures(launch.strategy, precision, most, blocks)
    for precision in precisions:
        cases += _other_reductions(launch.strategy, precision, most, modes)
    return cases + (_variants(launch.strategy, most, modes[0]) if modes else [])


def _mixtures(
    strategy: Strategy, precision: Precision, grad_accum_steps: int, blocks: int
) -> list[Case]:
    return [
        Case(
            accumulation=mixture,
            grad_accum_steps=grad_accum_steps,
            precision=precision,
            steps=VARIANT_STEPS,
        )
        for mixture in covering_mixtures(strategy, blocks)
    ]


def _other_reductions(
    strategy: Strategy, precision: Precision, grad_accum_steps: int, modes: Sequence[Accumulation]
) -> list[Case]:
    """Return each mode in the reductions that are not its default."""
    return [
        Case(
            accumulation=mode,
            grad_accum_steps=grad_accum_steps,
            precision=precision,
            steps=VARIANT_STEPS,
            reduce=reduce,
        )
        for mode in modes
        for reduce in possible_reductions(strategy, precision)
        if reduce != reduction_of(strategy, precision, None, mode)
    ]


def _variants(strategy: Strategy, grad_accum_steps: int, mode: Accumulation) -> list[Case]:
    """Return what one mode runs for a few steps beside the plain cases."""
    base = Case(accumulation=mode, grad_accum_steps=grad_accum_steps, steps=VARIANT_STEPS)
    variants: list[dict[str, Any]] = [
        {"grad_clip": 0.0},
        {"dropout": 0.1},
        {"loss": "chunked"},
        {"activation_checkpointing": True},
        {"whole_vocabulary": True},
        *([{"incomplete_window": True}] if grad_accum_steps > 1 else []),
        *([{"compile": True}] if strategy == COMPILED else []),
    ]
    return [replace(base, **variant) for variant in variants]


def controls_of(launch: Launch) -> list[Control]:
    """Return the faults that can be put into a launch."""
    return [c for c in CONTROLS if launch.strategy in c.strategies and launch.world_size > 1]


def run_cases(
    launch: Launch,
    cases: Sequence[Case],
    sizes: ModelSizes,
    *,
    controls: Sequence[Control] = (),
    timeout_s: float = 280.0,
) -> tuple[list[Outcome], list[Outcome | str]]:
    """Run all cases and controls in the workers of one launch.

    Returns:
        An outcome for each case, and for each control its outcome or the sentence that refused it.

    Raises:
        ProcessError: a process failed.
        HangError: they did not finish within `timeout_s` seconds; they have been ended.
    """
    with tempfile.TemporaryDirectory() as folder:
        work = Path(folder) / "work.pt"
        torch.save(Work(list(cases), list(controls), sizes, timeout_s), work)
        script = [worker.__file__, str(work)]
        start(launch.strategy, launch.world_size, script, timeout_s=timeout_s)
        return torch.load(work.with_name(FOUND), weights_only=False)


def verify_launch(
    launch: Launch,
    cases: Sequence[Case],
    sizes: ModelSizes,
    *,
    controls: Sequence[Control] = (),
    timeout_s: float,
) -> LaunchReport:
    """Run a launch and judge each of its cases and controls.

    Raises:
        ToolkitError: the launch failed or did not end in time.
    """
    # Whether a fault is caught means something only where the same case passes unbroken.
    unbroken = list({control.case: None for control in controls})
    results, broken = run_cases(
        launch, [*cases, *unbroken], sizes, controls=controls, timeout_s=timeout_s
    )
    verdicts = [
        judge(launch, case, result, sizes)
        for case, result in zip([*cases, *unbroken], results, strict=True)
    ]
    trusted = {verdict.case for verdict in verdicts[len(cases) :] if not verdict.problems}
    caught = [
        Caught(
            control.name,
            launch.strategy,
            _caught_by(launch, control, result, sizes) if control.case in trusted else None,
        )
        for control, result in zip(controls, broken, strict=True)
    ]
    return LaunchReport(verdicts[: len(cases)], caught)


def _caught_by(
    launch: Launch, control: Control, result: Outcome | str, sizes: ModelSizes
) -> str | None:
    """The first check that a broken engine did not pass."""
    if isinstance(result, str):
        return result
    return next(iter(judge(launch, control.case, result, sizes).problems), None)


def run_all(
    launches: Sequence[Launch],
    cases: Callable[[Launch], list[Case]],
    sizes: ModelSizes,
    *,
    with_controls: bool,
    timeout_s: float,
) -> Iterator[tuple[Launch, LaunchReport | str]]:
    """Yield each launch with its verdicts, or with the reason why it was not run or failed."""
    for launch in launches:
        reason = not_run(launch)
        if reason is not None:
            yield launch, f"not run: {reason}"
            continue
        controls = controls_of(launch) if with_controls else []
        try:
            yield (
                launch,
                verify_launch(launch, cases(launch), sizes, controls=controls, timeout_s=timeout_s),
            )
        except ToolkitError as error:
            yield launch, f"failed: {error}"
