"""Which arms and cases, and running them one launch after another."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from toolkit.engines.strategies import (
    REPLICAS,
    SUPPORT,
    Accumulation,
    Precision,
    Strategy,
    missing_engine,
)
from toolkit.errors import ToolkitError, UsageError
from toolkit.model.sizes import ModelSizes
from toolkit.verify.cases import SEQUENCES_PER_STEP, VARIANT_STEPS, Case
from toolkit.verify.controls import CONTROLS, Control
from toolkit.verify.launch import Result, run_arm
from toolkit.verify.verdict import Arm, Verdict, judge, launched_replicas

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
class ArmReport:
    """The verdicts on one launch."""

    verdicts: list[Verdict]
    controls: list[Caught]


def not_run(arm: Arm) -> str | None:
    """Return why an arm cannot exist here, or None if it can."""
    if missing := missing_engine(arm.strategy):
        return missing
    if arm.strategy == "single" and arm.world_size != 1:
        return "one process is one process"
    try:
        launched_replicas(arm.strategy, arm.world_size)
    except UsageError as error:
        return str(error)
    if SEQUENCES_PER_STEP % arm.world_size:
        return f"{SEQUENCES_PER_STEP} sequences do not divide by {arm.world_size} processes"
    return None


def plan_arms(strategies: Sequence[Strategy], world_sizes: Sequence[int]) -> list[Arm]:
    """Return every strategy at every world size; without sizes, each at the smallest it can have.

    `not_run` says which of them cannot exist.
    """
    smallest = {"single": 1, "hsdp": 2 * REPLICAS}
    return [
        Arm(strategy, size)
        for strategy in strategies
        for size in world_sizes or [smallest.get(strategy, 2)]
    ]


def cases_of(
    arm: Arm,
    *,
    accumulations: Sequence[Accumulation],
    grad_accum_steps: Sequence[int],
    precisions: Sequence[Precision],
    steps: int,
) -> list[Case]:
    """Return the cases of an arm: every mode it can accumulate in, with both optimizers.

    The first mode also runs, for a few steps, unclipped, with an incomplete last window, with
    dropout, with the chunked loss, with activation checkpointing, with GPT-2's whole vocabulary
    and, under one strategy, compiled.
    """
    modes = [mode for mode in accumulations if SUPPORT[arm.strategy][mode].possible]
    plain = [
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
    most = max(grad_accum_steps)
    if not modes:
        return plain
    base: dict[str, Any] = {
        "accumulation": modes[0],
        "grad_accum_steps": most,
        "steps": VARIANT_STEPS,
    }
    variants: list[dict[str, Any]] = [
        {"grad_clip": 0.0},
        {"dropout": 0.1},
        {"loss": "chunked"},
        {"activation_checkpointing": True},
        {"whole_vocabulary": True},
        *([{"incomplete_window": True}] if most > 1 else []),
        *([{"compile": True}] if arm.strategy == COMPILED else []),
    ]
    return plain + [Case(**base, **variant) for variant in variants]


def controls_of(arm: Arm) -> list[Control]:
    """Return the faults that can be put into an arm."""
    return [c for c in CONTROLS if arm.strategy in c.strategies and arm.world_size > 1]


def verify_arm(
    arm: Arm,
    cases: Sequence[Case],
    sizes: ModelSizes,
    *,
    controls: Sequence[Control] = (),
    timeout_s: float,
) -> ArmReport:
    """Launch an arm and judge each of its cases and controls.

    Raises:
        ToolkitError: the launch failed or did not end in time.
    """
    # Whether a fault is caught says something only where the same case passes unbroken.
    unbroken = list({control.case: None for control in controls})
    results, broken = run_arm(
        arm.strategy,
        arm.world_size,
        [*cases, *unbroken],
        sizes,
        controls=[control.name for control in controls],
        timeout_s=timeout_s,
    )
    verdicts = [
        judge(arm, case, result, sizes)
        for case, result in zip([*cases, *unbroken], results, strict=True)
    ]
    trusted = {verdict.case for verdict in verdicts[len(cases) :] if not verdict.problems}
    caught = [
        Caught(
            control.name,
            arm.strategy,
            _caught_by(arm, control, result, sizes) if control.case in trusted else None,
        )
        for control, result in zip(controls, broken, strict=True)
    ]
    return ArmReport(verdicts[: len(cases)], caught)


def _caught_by(arm: Arm, control: Control, result: Result, sizes: ModelSizes) -> str | None:
    """The first check that a broken engine did not pass."""
    if isinstance(result, str):
        return result
    return next(iter(judge(arm, control.case, result, sizes).problems), None)


def run_all(
    arms: Sequence[Arm],
    cases: Callable[[Arm], list[Case]],
    sizes: ModelSizes,
    *,
    with_controls: bool,
    timeout_s: float,
) -> Iterator[tuple[Arm, ArmReport | str]]:
    """Yield each arm with its verdicts, or with the reason why it was not run or failed."""
    for arm in arms:
        reason = not_run(arm)
        if reason is not None:
            yield arm, f"not run: {reason}"
            continue
        controls = controls_of(arm) if with_controls else []
        try:
            yield arm, verify_arm(arm, cases(arm), sizes, controls=controls, timeout_s=timeout_s)
        except ToolkitError as error:
            yield arm, f"failed: {error}"
