"""`toolkit verify`, from its options to its exit code."""

import json
from collections.abc import Sequence

from rich.console import Console
from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

from toolkit.backends.strategies import Accumulation, Precision, Strategy
from toolkit.errors import UsageError
from toolkit.model.sizes import ModelSizes
from toolkit.verify.cases import Case
from toolkit.verify.report import build_controls_table, build_json, build_table
from toolkit.verify.run import Caught, cases_of, controls_of, plan_arms, run_all
from toolkit.verify.verdict import Arm, Verdict

NOT_EQUAL = 1


def verify(
    *,
    strategies: Sequence[Strategy],
    accumulations: Sequence[Accumulation],
    world_sizes: Sequence[int],
    grad_accum_steps: Sequence[int],
    precisions: Sequence[Precision],
    sizes: ModelSizes,
    steps: int,
    with_controls: bool,
    as_json: bool,
    timeout_s: float,
) -> int:
    """Run the arms, print a table or JSON; return 0 only if all are equal and all faults caught.

    Raises:
        UsageError: controls are asked for and none of the arms has any.
    """
    verdicts: list[Verdict] = []
    controls: list[Caught] = []
    others: dict[Arm, str] = {}
    arms = plan_arms(strategies, world_sizes)
    if with_controls and not any(controls_of(arm) for arm in arms):
        raise UsageError("--controls needs ddp, fsdp2 or zero2 among the strategies, on 2 ranks up")

    def cases(arm: Arm) -> list[Case]:
        return cases_of(
            arm,
            accumulations=accumulations,
            grad_accum_steps=grad_accum_steps,
            precisions=precisions,
            steps=steps,
        )

    columns = (SpinnerColumn(), TextColumn("{task.description}"), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True)) as progress:
        task = progress.add_task("starting", total=len(arms))
        running = run_all(arms, cases, sizes, with_controls=with_controls, timeout_s=timeout_s)
        for done, (arm, found) in enumerate(running, 1):
            name = f"{arm.strategy} on {arm.world_size}"
            if isinstance(found, str):
                others[arm] = found
            else:
                verdicts += found.verdicts
                controls += found.controls
            progress.update(task, completed=done, description=f"{done}/{len(arms)} {name}")
    report = build_json(verdicts, controls, others, sizes, steps=steps)
    if as_json:
        print(json.dumps(report, indent=2))
    else:
        print_tables(verdicts, controls, others)
    return 0 if report["ok"] else NOT_EQUAL


def print_tables(verdicts: list[Verdict], controls: list[Caught], others: dict[Arm, str]) -> None:
    """Print what was found, a line for each arm that was not run, and how many cases are equal."""
    console = Console(width=None if Console().is_terminal else 200)
    if verdicts:
        console.print(build_table(verdicts))
    if controls:
        console.print(build_controls_table(controls))
    for arm, reason in others.items():
        line = f"{arm.strategy} on {arm.world_size}: {reason}"
        console.print(line, highlight=False, markup=False)
    equal = sum(not verdict.problems for verdict in verdicts)
    console.print(
        f"{equal} of {len(verdicts)} cases are equal to the exact update up to rounding"
        if verdicts
        else "no case was judged"
    )
    if controls:
        caught = sum(control.by is not None for control in controls)
        console.print(f"{caught} of {len(controls)} faults put in on purpose are caught")
