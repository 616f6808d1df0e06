"""`toolkit verify`, from its options to its exit code."""

import json
from collections.abc import Callable, Sequence

from rich.console import Console
from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

from toolkit.engines.strategies import Accumulation, Precision, Strategy
from toolkit.errors import UsageError
from toolkit.model.sizes import ModelSizes
from toolkit.verify.cases import Case
from toolkit.verify.duration import expected_seconds
from toolkit.verify.report import (
    WIDEST,
    WIDTH,
    build_controls_table,
    build_json,
    build_notes,
    build_table,
)
from toolkit.verify.run import Caught, cases_of, controls_of, not_run, plan_arms, run_all
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
    wide: bool,
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

    console = Console(stderr=True)
    console.print(_announcement(arms, cases, sizes, with_controls=with_controls), highlight=False)
    columns = (SpinnerColumn(), TextColumn("{task.description}"), TimeElapsedColumn())
    with Progress(*columns, console=console) as progress:
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
        print_tables(verdicts, controls, others, wide=wide)
    return 0 if report["ok"] else NOT_EQUAL


def _announcement(
    arms: Sequence[Arm],
    cases: Callable[[Arm], list[Case]],
    sizes: ModelSizes,
    *,
    with_controls: bool,
) -> str:
    """Return what is going to run and about how long that takes."""
    launches = {arm: cases(arm) for arm in arms if not_run(arm) is None}
    broken = {arm: controls_of(arm) if with_controls else [] for arm in launches}
    everything = {
        arm: [*of_arm, *(control.case for control in broken[arm])]
        for arm, of_arm in launches.items()
    }
    faults = sum(map(len, broken.values()))
    minutes = max(1, round(expected_seconds(everything, sizes) / 60))
    return (
        f"{_counted(len(launches), 'launch', 'launches')} with "
        f"{_counted(sum(map(len, launches.values())), 'case', 'cases')}"
        + (f" and {_counted(faults, 'fault', 'faults')}" if faults else "")
        + f": about {_counted(minutes, 'minute', 'minutes')}"
    )


def _counted(number: int, one: str, many: str) -> str:
    """Return a number with its noun."""
    return f"{number:,} {one if number == 1 else many}"


def print_tables(
    verdicts: list[Verdict], controls: list[Caught], others: dict[Arm, str], *, wide: bool
) -> None:
    """Print what was found, a line for each arm that was not run, and how many cases are equal."""
    # Where there is less room the terminal wraps a row; cut cells say nothing.
    console = Console(width=WIDEST if wide else max(WIDTH, Console().width))
    if verdicts:
        console.print(build_table(verdicts, wide=wide))
        for note in build_notes(verdicts):
            console.print(note, highlight=False, markup=False, soft_wrap=True)
    if controls:
        console.print(build_controls_table(controls))
    for arm, reason in others.items():
        line = f"{arm.strategy} on {arm.world_size}: {reason}"
        console.print(line, highlight=False, markup=False, soft_wrap=True)
    equal = sum(not verdict.problems for verdict in verdicts)
    console.print(
        f"{equal} of {len(verdicts)} cases are equal to the exact update up to rounding"
        if verdicts
        else "no case was judged"
    )
    if controls:
        caught = sum(control.by is not None for control in controls)
        console.print(f"{caught} of {len(controls)} faults put in on purpose are caught")
