"""`toolkit verify`: that strategies and modes compute the same update."""

import json
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from toolkit.commands.options import AsJson
from toolkit.engines.strategies import ACCUMULATIONS, STRATEGIES, Accumulation

if TYPE_CHECKING:
    from toolkit.model.sizes import ModelSizes
    from toolkit.verify.cases import Case
    from toolkit.verify.run import Caught
    from toolkit.verify.verdict import Launch, Verdict

NOT_EQUAL = 1
MODES: tuple[Accumulation | Literal["mixtures"], ...] = (*ACCUMULATIONS, "mixtures")
ALL_STRATEGIES, ALL_MODES = ",".join(STRATEGIES), ",".join(MODES)

Strategies = Annotated[str, typer.Option(help="Comma-separated.")]
Accumulations = Annotated[str, typer.Option(help="Comma-separated; impossible pairs are skipped.")]
WorldSizes = Annotated[
    str | None,
    typer.Option(
        help="Comma-separated.", show_default="the smallest of each: 1 for single, 4 for hsdp, 2"
    ),
]
Model = Annotated[
    str, typer.Option(help="A preset, or n_layer,n_head,n_embd,vocab_size,block_size.")
]
Controls = Annotated[
    bool, typer.Option("--controls", help="Also put faults in and see each one caught.")
]
Wide = Annotated[
    bool, typer.Option("--wide", help="All columns: also traffic, what is held, replicas.")
]


def verify(
    strategies: Strategies = ALL_STRATEGIES,
    accumulation: Accumulations = ALL_MODES,
    world_sizes: WorldSizes = None,
    grad_accum: Annotated[str, typer.Option(help="Micro-steps, comma-separated.")] = "4",
    precision: Annotated[str, typer.Option(help="Comma-separated.")] = "fp32,bf16",
    model: Model = "2,2,32,512,32",
    steps: Annotated[int, typer.Option(help="Updates per case.", min=3, max=50)] = 10,
    controls: Controls = False,
    timeout: Annotated[float, typer.Option(help="Seconds for one launch.")] = 300.0,
    wide: Wide = False,
    as_json: AsJson = False,
) -> None:
    """Prove that strategies and accumulation modes compute the same update, by launching them.

    Example: toolkit verify --strategies ddp,fsdp2 --world-sizes 2
    """
    from toolkit.errors import UsageError
    from toolkit.verify.options import choices, model_sizes, numbers
    from toolkit.verify.report import build_json
    from toolkit.verify.run import cases_of, controls_of, plan_launches

    launches = plan_launches(
        choices("--strategies", strategies, STRATEGIES),
        numbers("--world-sizes", world_sizes) if world_sizes else [],
    )
    sizes = model_sizes(model)
    of_each = partial(
        cases_of,
        accumulations=choices("--accumulation", accumulation, MODES),
        grad_accum_steps=numbers("--grad-accum", grad_accum),
        precisions=choices("--precision", precision, ("fp32", "bf16")),
        steps=steps,
        blocks=sizes.n_layer,
    )
    if controls and not any(controls_of(launch) for launch in launches):
        raise UsageError("--controls needs ddp, fsdp2 or zero2 among the strategies, on 2 ranks up")
    found = _run(launches, of_each, sizes, with_controls=controls, timeout_s=timeout)
    report = build_json(*found, sizes, steps=steps)
    if as_json:
        print(json.dumps(report, indent=2))
    else:
        print_tables(*found, wide=wide)
    raise typer.Exit(0 if report["ok"] else NOT_EQUAL)


def _run(
    launches: "Sequence[Launch]",
    cases: "Callable[[Launch], list[Case]]",
    sizes: "ModelSizes",
    *,
    with_controls: bool,
    timeout_s: float,
) -> "tuple[list[Verdict], list[Caught], dict[Launch, str]]":
    """Start one launch after another; return verdicts, controls and reasons of the others."""
    from rich.console import Console
    from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

    from toolkit.verify.run import run_all

    verdicts: list[Verdict] = []
    controls: list[Caught] = []
    others: dict[Launch, str] = {}
    console = Console(stderr=True)
    console.print(
        _announcement(launches, cases, sizes, with_controls=with_controls), highlight=False
    )
    columns = (SpinnerColumn(), TextColumn("{task.description}"), TimeElapsedColumn())
    with Progress(*columns, console=console) as progress:
        task = progress.add_task("starting", total=len(launches))
        running = run_all(launches, cases, sizes, with_controls=with_controls, timeout_s=timeout_s)
        for done, (launch, found) in enumerate(running, 1):
            name = f"{launch.strategy} on {launch.world_size}"
            if isinstance(found, str):
                others[launch] = found
            else:
                verdicts += found.verdicts
                controls += found.controls
            progress.update(task, completed=done, description=f"{done}/{len(launches)} {name}")
    return verdicts, controls, others


def _announcement(
    launches: "Sequence[Launch]",
    cases: "Callable[[Launch], list[Case]]",
    sizes: "ModelSizes",
    *,
    with_controls: bool,
) -> str:
    """Return what is going to run and about how long that takes."""
    from toolkit.counted import counted
    from toolkit.verify.duration import expected_seconds
    from toolkit.verify.run import controls_of, not_run

    possible = {launch: cases(launch) for launch in launches if not_run(launch) is None}
    broken = {launch: controls_of(launch) if with_controls else [] for launch in possible}
    everything = {
        launch: [*own_cases, *(control.case for control in broken[launch])]
        for launch, own_cases in possible.items()
    }
    faults = sum(map(len, broken.values()))
    minutes = max(1, round(expected_seconds(everything, sizes) / 60))
    return (
        f"{counted(len(possible), 'launch', 'launches')} with "
        f"{counted(sum(map(len, possible.values())), 'case')}"
        + (f" and {counted(faults, 'fault')}" if faults else "")
        + f": about {counted(minutes, 'minute')}"
    )


def print_tables(
    verdicts: "list[Verdict]", controls: "list[Caught]", others: "dict[Launch, str]", *, wide: bool
) -> None:
    """Print what was found, why some launches were not run, and how many cases are equal."""
    from rich.console import Console

    from toolkit.verify.report import (
        WIDEST,
        WIDTH,
        build_controls_table,
        build_notes,
        build_table,
    )

    # Where there is less room the terminal wraps a row; cut cells are unreadable.
    console = Console(width=WIDEST if wide else max(WIDTH, Console().width))
    if verdicts:
        console.print(build_table(verdicts, wide=wide))
        for note in build_notes(verdicts):
            console.print(note, highlight=False, markup=False, soft_wrap=True)
    if controls:
        console.print(build_controls_table(controls))
    for launch, reason in others.items():
        line = f"{launch.strategy} on {launch.world_size}: {reason}"
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
