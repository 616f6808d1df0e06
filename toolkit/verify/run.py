"""`toolkit verify`: which arms, run them, and what to say of each."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

from toolkit.backends.communication import expected_bytes
from toolkit.backends.strategies import SUPPORT, Accumulation, Precision, Strategy
from toolkit.errors import ToolkitError
from toolkit.model.sizes import ModelSizes
from toolkit.verify.arm import Outcome
from toolkit.verify.cases import SEQUENCES_PER_STEP, Case
from toolkit.verify.compare import Difference, compare
from toolkit.verify.launch import run_arm
from toolkit.verify.tolerance import COMPARED, Yardstick, yardstick

REPLICAS = 2
"""Replica groups in the shipped launch file of hybrid sharding."""


@dataclass(frozen=True)
class Arm:
    """One launch: a strategy on a number of processes."""

    strategy: Strategy
    world_size: int


@dataclass(frozen=True)
class Verdict:
    """One case of one arm beside the exact update.

    Attributes:
        problems: a sentence for each thing that is not as it should be; empty if it all is.
    """

    arm: Arm
    case: Case
    difference: Difference
    outcome: Outcome
    problems: list[str]

    def to_json(self) -> dict[str, Any]:
        """Return the object that `--json` prints for a case."""
        traffic = {kind: vars(found) for kind, found in self.outcome.traffic.items()}
        return {
            "strategy": self.arm.strategy,
            "accumulation": self.case.accumulation,
            "world_size": self.arm.world_size,
            "grad_accum_steps": self.case.grad_accum_steps,
            "precision": self.case.precision,
            "optimizer": self.case.optimizer,
            "loss_max_abs": self.difference.loss_max_abs,
            "grad_norm_max_rel": self.difference.grad_norm_max_rel,
            "gradient_max_rel": self.difference.gradient_max_rel,
            "param_max_rel": self.difference.param_max_rel,
            "replicas_differ": self.outcome.replicas_differ,
            "collectives": traffic,
            "problems": self.problems,
            "ok": not self.problems,
        }


def not_run(arm: Arm) -> str | None:
    """Return why an arm cannot exist, or None if it can."""
    if arm.strategy == "single" and arm.world_size != 1:
        return "one process is one process"
    if arm.strategy == "hsdp" and (arm.world_size % REPLICAS or arm.world_size <= REPLICAS):
        return f"{REPLICAS} replica groups of at least 2 shards need 4 processes or more"
    if SEQUENCES_PER_STEP % arm.world_size:
        return f"{SEQUENCES_PER_STEP} sequences do not divide by {arm.world_size} processes"
    return None


def cases_of(
    arm: Arm,
    *,
    accumulations: Sequence[Accumulation],
    grad_accum_steps: Sequence[int],
    precisions: Sequence[Precision],
    steps: int,
) -> list[Case]:
    """Return the cases of an arm: every mode it can accumulate in, with both optimizers."""
    return [
        Case(
            accumulation=mode,
            grad_accum_steps=count,
            precision=precision,
            optimizer=optimizer,
            steps=steps,
        )
        for precision in precisions
        for mode in accumulations
        if SUPPORT[arm.strategy][mode].possible
        for count in grad_accum_steps
        for optimizer in ("sgd", "adamw")
    ]


def verify_arm(
    arm: Arm, cases: Sequence[Case], sizes: ModelSizes, *, timeout_s: float
) -> list[Verdict]:
    """Launch an arm and judge each of its cases.

    Raises:
        ToolkitError: the launch failed or did not end in time.
    """
    outcomes = run_arm(arm.strategy, arm.world_size, cases, sizes, timeout_s=timeout_s)
    return [judge(arm, case, out, sizes) for case, out in zip(cases, outcomes, strict=True)]


def judge(arm: Arm, case: Case, outcome: Outcome, sizes: ModelSizes) -> Verdict:
    """Compare one outcome with the exact update and the closed formulas."""
    measure = _yardstick(replace(case, accumulation="replicated", grad_accum_steps=1), sizes)
    difference = compare(outcome.trajectory, measure.exact)
    problems = [
        *_numeric_problems(case, difference, measure),
        *_traffic_problems(arm, case, outcome, sizes),
    ]
    if outcome.replicas_differ:
        problems.append(f"{outcome.replicas_differ} parameters differ between ranks")
    return Verdict(arm, case, difference, outcome, problems)


@cache
def _yardstick(case: Case, sizes: ModelSizes) -> Yardstick:
    """The reference knows neither micro-steps nor ranks, so one serves every way to cut a batch."""
    return yardstick(case, sizes)


def _numeric_problems(case: Case, difference: Difference, measure: Yardstick) -> Iterator[str]:
    for name in COMPARED:
        # AdamW divides by the gradient's own size, so in bf16 a small gradient's sign is a draw.
        if case.precision != "fp32" and case.optimizer == "adamw" and name == "param_max_rel":
            continue
        found, limit = getattr(difference, name), measure.limit(name, case.precision)
        if not found <= limit:
            yield f"{name} {found:.1e} is above {limit:.1e}"
    most = case.optimizer_config().lr * case.steps
    if not difference.key_bias_max_abs <= 2 * most:
        yield f"key biases moved by {difference.key_bias_max_abs:.1e}, beyond 2 x {most:.1e}"


def _traffic_problems(arm: Arm, case: Case, outcome: Outcome, sizes: ModelSizes) -> Iterator[str]:
    expected = expected_bytes(
        arm.strategy,
        case.accumulation,
        sizes=sizes,
        grad_accum_steps=case.grad_accum_steps,
        precision=case.precision,
        world_size=arm.world_size,
        replicas=REPLICAS if arm.strategy == "hsdp" else 1,
    )
    for kind, bound in expected.items():
        found = outcome.traffic[kind].bytes  # type: ignore[index]
        if not bound.admits(found):
            yield f"{kind} {found:,} bytes, not {bound.at_least:,} to {bound.at_most:,}"


def run_all(
    arms: Sequence[Arm],
    cases: Callable[[Arm], list[Case]],
    sizes: ModelSizes,
    *,
    timeout_s: float,
) -> Iterator[tuple[Arm, list[Verdict] | str]]:
    """Yield each arm with its verdicts, or with the reason why it was not run or failed."""
    for arm in arms:
        reason = not_run(arm)
        if reason is not None:
            yield arm, f"not run: {reason}"
            continue
        try:
            yield arm, verify_arm(arm, cases(arm), sizes, timeout_s=timeout_s)
        except ToolkitError as error:
            yield arm, f"failed: {error}"


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
