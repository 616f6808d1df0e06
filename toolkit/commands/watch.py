"""`toolkit watch`: data parallelism phase by phase, as a page to look at."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from toolkit.engines.strategies import ACCUMULATIONS, ALONE, COPIES, STRATEGIES

if TYPE_CHECKING:
    from toolkit.watch.lesson import Case

Run = Annotated[
    Path | None,
    typer.Argument(help="A run that has recorded steps; without it, the lesson.", metavar="RUN"),
]
NoAveraging = Annotated[
    bool, typer.Option("--no-averaging", help="Open the page with averaging off.")
]
MeanOfMeans = Annotated[bool, typer.Option("--mean-of-means", help="Open it at the mean of means.")]
Strategies = Annotated[str, typer.Option("--strategy", help="Engines, comma-separated.")]
Modes = Annotated[str, typer.Option("--accumulation", help="Modes, comma-separated.")]
MODES = ",".join(ACCUMULATIONS)
ENGINES = ",".join(strategy for strategy in STRATEGIES if strategy != ALONE)


def watch(
    run: Run = None,
    out: Annotated[Path, typer.Option(help="The page.", metavar="FILE.html")] = Path("watch.html"),
    gpus: Annotated[int, typer.Option(help="Processes, each in place of a GPU.")] = 4,
    weights: Annotated[int, typer.Option(help="Weights of the model.")] = 4,
    batch: Annotated[int, typer.Option(help="Samples of a global batch.")] = 8,
    grad_accum: Annotated[int, typer.Option(help="Micro-steps of an update.")] = 2,
    batches: Annotated[int, typer.Option(help="Updates to record the drift of.", min=2)] = 20,
    accumulation: Modes = MODES,
    strategy: Strategies = ENGINES,
    no_averaging: NoAveraging = False,
    mean_of_means: MeanOfMeans = False,
    timeout: Annotated[float, typer.Option(help="Seconds for one launch.")] = 300.0,
) -> None:
    """Watch real processes share one update, phase by phase, on a page of its own.

    With RUN, a page of the steps that it recorded (training.record).

    Example: toolkit watch --strategy ddp,fsdp2 --out page.html
    """
    if run is not None:
        _write_run(run, out)
        return
    from toolkit.counted import counted
    from toolkit.verify.options import choices
    from toolkit.watch.dials import build_dials
    from toolkit.watch.lesson import Case, plan_cases
    from toolkit.watch.page import write_page
    from toolkit.watch.record import record_cases

    base = Case(
        strategy=COPIES,
        accumulation="replicated",
        gpus=gpus,
        grad_accum_steps=grad_accum,
        samples=batch,
        weights=weights,
        batches=batches,
    )
    strategies = tuple(choices("--strategy", strategy, STRATEGIES))
    modes = tuple(choices("--accumulation", accumulation, ACCUMULATIONS))
    cases, reasons = plan_cases(base, strategies=strategies, accumulations=modes)
    start = _start(cases, averages=not no_averaging, mean_of_means=mean_of_means)
    for reason in reasons:
        typer.echo(f"not recorded: {reason}", err=True)
    typer.echo(f"recording {counted(len(cases), 'case')} in real processes", err=True)
    dials = build_dials(strategies, modes)
    data = {"recordings": record_cases(cases, timeout_s=timeout), "start": start, "dials": dials}
    write_page(data, out, title="Watch data parallelism happen")
    typer.echo(out)


def _write_run(run: Path, out: Path) -> None:
    from toolkit.watch.page import write_page
    from toolkit.watch.run import run_data

    data = run_data(run)
    write_page({"run": data}, out, title=f"Run {data['name']}")
    typer.echo(out)


def _start(cases: "list[Case]", *, averages: bool, mean_of_means: bool) -> int:
    """Return the recording that the page opens with."""
    from toolkit.errors import UsageError

    for place, case in enumerate(cases):
        if case.averages == averages and case.mean_of_means == mean_of_means:
            return place
    raise UsageError(
        f"only {COPIES} has copies that can drift apart, or recordings of a mean of means, one at "
        f"a time; add {COPIES} to --strategy, without --no-averaging or --mean-of-means"
    )
