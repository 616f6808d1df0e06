"""The verdict on one case: its distance from the exact update, its traffic, what it holds."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

from toolkit.engines.mixture import to_config
from toolkit.engines.reduction import Reduce
from toolkit.engines.strategies import Strategy
from toolkit.engines.traffic import Kind, Traffic
from toolkit.launch.file import load_launch_file
from toolkit.model.sizes import ModelSizes
from toolkit.program.readers.held import read_held
from toolkit.program.readers.traffic import read_traffic
from toolkit.program.step import write_step
from toolkit.shipped import find_launch_file
from toolkit.verify.cases import Case
from toolkit.verify.compare import Difference, compare
from toolkit.verify.outcome import Outcome
from toolkit.verify.tolerance import COMPARED, Yardstick, reduction_error, yardstick


@dataclass(frozen=True)
class Launch:
    """One launch: a strategy on a number of processes."""

    strategy: Strategy
    world_size: int

    @property
    def replicas(self) -> int:
        """Replica groups."""
        return launched_replicas(self.strategy, self.world_size)


def launched_replicas(strategy: Strategy, world_size: int) -> int:
    """Return the replica groups that the shipped launch file asks for.

    Raises:
        UsageError: so many processes cannot form them.
    """
    return load_launch_file(find_launch_file(strategy)).replicas_on(world_size)


@dataclass(frozen=True)
class Verdict:
    """One case of a launch beside the exact update.

    Attributes:
        limits: the largest admissible value of each compared figure.
        torch_norm_max_rel: how far the norms are from fp64 that plain PyTorch finds here.
        problems: a sentence for each thing that is not as it should be; empty if it all is.
    """

    launch: Launch
    case: Case
    difference: Difference
    limits: dict[str, float]
    torch_norm_max_rel: float
    outcome: Outcome
    expected: dict[Kind, Traffic]
    expected_held_gradient_bytes: int | None
    problems: list[str]

    def to_json(self) -> dict[str, Any]:
        """Return the object that `--json` prints for a case."""
        return {
            "strategy": self.launch.strategy,
            "accumulation": to_config(self.case.accumulation),
            "world_size": self.launch.world_size,
            "grad_accum_steps": self.case.grad_accum_steps,
            "precision": self.case.precision,
            "optimizer": self.case.optimizer,
            "variant": self.case.variant,
            "steps": self.case.steps,
            **{name: getattr(self.difference, name) for name in COMPARED},
            "limits": self.limits,
            "torch_norm_max_rel": self.torch_norm_max_rel,
            "collectives": {kind: vars(seen) for kind, seen in self.outcome.traffic.items()},
            "expected_collectives": {kind: vars(count) for kind, count in self.expected.items()},
            "held_gradient_bytes": self.outcome.held_gradient_bytes,
            "expected_held_gradient_bytes": self.expected_held_gradient_bytes,
            "replica_groups": self.outcome.replica_groups,
            "replicas_differ": self.outcome.replica_problems,
            "problems": self.problems,
            "ok": not self.problems,
        }


def judge(launch: Launch, case: Case, outcome: Outcome, sizes: ModelSizes) -> Verdict:
    """Compare one outcome with the exact update and with the program of the engine's step."""
    sizes = case.model(sizes)
    measure = _yardstick(reference_of(case), sizes)
    difference = compare(outcome.trajectory, measure.exact)
    limits = _limits(launch, case, measure)
    # The last step is the counted one.
    settings = case.step_settings(
        case.steps - 1,
        sizes,
        launch.strategy,
        world_size=launch.world_size,
        replicas=launch.replicas,
    )
    program = write_step(settings)
    expected, held = read_traffic(program, settings), read_held(program)
    problems = [
        *_numeric_problems(case, difference, limits),
        *traffic_problems(outcome.traffic, expected),
        *_memory_problems(outcome, held, case.reduce),
        *outcome.replica_problems,
    ]
    return Verdict(
        launch=launch,
        case=case,
        difference=difference,
        limits=limits,
        torch_norm_max_rel=measure.torch_norm_max_rel,
        outcome=outcome,
        expected=expected,
        expected_held_gradient_bytes=held,
        problems=problems,
    )


def reference_of(case: Case) -> Case:
    """The reference knows neither micro-steps nor ranks, so one serves every way to cut a batch."""
    same = replace(
        case,
        accumulation="replicated",
        reduce=None,
        dropout=0.0,
        loss="plain",
        activation_checkpointing=False,
        compile=False,
    )
    return same if case.incomplete_window else replace(same, grad_accum_steps=1)


@cache
def _yardstick(case: Case, sizes: ModelSizes) -> Yardstick:
    return yardstick(case, sizes)


def _limits(launch: Launch, case: Case, measure: Yardstick) -> dict[str, float]:
    """What is compared, with its limit; under dropout a case with itself, since draws differ."""
    if case.dropout:
        return {"own_norm_rel": measure.limit("own_norm_rel", case.precision)}
    extra = reduction_error(case, world_size=launch.world_size)
    limits = {name: measure.limit(name, case.precision, extra) for name in COMPARED}
    # AdamW divides by the gradient's own size, so in bf16 a small gradient's sign is a draw.
    if (case.precision != "fp32" or extra) and case.optimizer == "adamw":
        del limits["param_max_rel"]
    return limits


def _numeric_problems(
    case: Case, difference: Difference, limits: dict[str, float]
) -> Iterator[str]:
    for name, limit in limits.items():
        found = getattr(difference, name)
        if not found <= limit:
            yield f"{name} {found:.1e} is above {limit:.1e}"
    most = case.optimizer_config().lr * case.steps
    if not difference.key_bias_max_abs <= 2 * most:
        yield f"key biases moved by {difference.key_bias_max_abs:.1e}, beyond 2 x {most:.1e}"


def traffic_problems(
    traffic: Mapping[Kind, Traffic], expected: Mapping[Kind, Traffic]
) -> Iterator[str]:
    """Yield a sentence for each count of collectives that is not the program's."""
    for kind, seen in traffic.items():
        should = expected[kind]
        if seen.bytes != should.bytes:
            yield f"{kind} {seen.bytes:,} bytes, not {should.bytes:,}"
        if seen.calls != should.calls:
            yield f"{kind} {seen.calls:,} calls, not {should.calls:,}"
        if seen.group_sizes != should.group_sizes:
            found, right = (
                ", ".join(map(str, traffic.group_sizes)) or "no" for traffic in (seen, should)
            )
            yield f"{kind} in groups of {found} ranks, not {right}"


def _memory_problems(
    outcome: Outcome, expected: int | None, reduce: Reduce | None
) -> Iterator[str]:
    found = outcome.held_gradient_bytes
    if found != expected:
        dtypes = ", ".join(outcome.held_gradient_dtypes)
        yield f"{found} bytes of gradients held between micro-steps ({dtypes}), not {expected}"
    if expected and reduce != "bf16" and "torch.float32" not in outcome.held_gradient_dtypes:
        yield f"gradients are held in {', '.join(outcome.held_gradient_dtypes)} alone"
