"""`toolkit train`: a run on its strategy, from the launch line to the exit code."""

from pathlib import Path
from typing import Annotated

import typer

from toolkit.commands.options import Overrides
from toolkit.errors import UsageError

Strategy = Annotated[str | None, typer.Option(help="One of configs/accelerate, or a launch file.")]
Config = Annotated[Path | None, typer.Option(help="The run configuration.", metavar="RUN.yaml")]
Plan = Annotated[
    Path | None,
    typer.Option(help="A folder that plan --write made, in place of both.", metavar="DIR"),
]
NumProcesses = Annotated[
    int | None, typer.Option(help="Processes to start; else the launch file's.")
]
Machines = Annotated[
    str | None,
    typer.Option(
        help="On each machine of a run: how many there may be, as they come and go.",
        metavar="LEAST:MOST",
    ),
]
PerMachine = Annotated[int, typer.Option(help="Processes on each machine, with --machines.", min=1)]
Address = Annotated[
    str | None, typer.Option(help="By which other machines reach this one; else its host's.")
]
ScaleFrom = Annotated[
    int | None,
    typer.Option(
        help="Tokens per step that the learning rate was chosen for.", min=1, metavar="TOKENS"
    ),
]
ShowSchedule = Annotated[
    bool, typer.Option("--show-schedule", help="Draw the learning rate, and start nothing.")
]
Strict = Annotated[bool, typer.Option("--strict", help="Refuse to skip a damaged checkpoint.")]
Verbose = Annotated[bool, typer.Option("--verbose", help="Print every check.")]
Quiet = Annotated[bool, typer.Option("--quiet", help="Print warnings and errors alone.")]


def train(
    strategy: Strategy = None,
    config: Config = None,
    plan: Plan = None,
    overrides: Overrides = None,
    num_processes: NumProcesses = None,
    machines: Machines = None,
    per_machine: PerMachine = 1,
    address: Address = None,
    scale_lr_from: ScaleFrom = None,
    show_schedule: ShowSchedule = False,
    strict: Strict = False,
    verbose: Verbose = False,
    quiet: Quiet = False,
) -> None:
    """Print the `accelerate launch` line of a run, run it, and return the run's exit code.

    The pair of files and the data are checked before anything is started.

    With --machines, each machine of the run calls this, and they may come and go.

    Example: toolkit train --strategy fsdp2 --num-processes 2 --config my.yaml
    """
    from toolkit.training.elastic import start_elastic
    from toolkit.training.start import start

    strategy, config = _files(strategy, config, plan)
    overrides = _with_learning_rate(config, overrides or [], scale_lr_from)
    if show_schedule:
        _draw_schedule(config, overrides)
        return
    flags = {"--strict": strict, "--verbose": verbose, "--quiet": quiet}
    job = (strategy, config, overrides)
    options = [flag for flag, is_given in flags.items() if is_given]
    if machines is None:
        raise typer.Exit(start(*job, num_processes=num_processes, options=options))
    if num_processes is not None:
        raise UsageError("--machines takes --per-machine, not --num-processes")
    raise typer.Exit(
        start_elastic(
            *job, machines=machines, per_machine=per_machine, address=address, options=options
        )
    )


def _files(strategy: str | None, config: Path | None, plan: Path | None) -> tuple[str, Path]:
    """Return the launch file and the run configuration.

    Raises:
        UsageError: neither a plan nor both of them were given.
    """
    from toolkit.planning.write import plan_files

    if plan is not None:
        if strategy is not None or config is not None:
            raise UsageError("--plan has its own launch file and run configuration; give it alone")
        return plan_files(plan)
    if strategy is None or config is None:
        raise UsageError("give --strategy and --config, or --plan DIR")
    return strategy, config


def _with_learning_rate(config: Path, overrides: list[str], recipe_tokens: int | None) -> list[str]:
    """Return the overrides with the learning rate that another number of tokens per step asks for.

    It is an override like others, so it stands in the printed line and in the run's config.yaml.
    """
    if recipe_tokens is None:
        return overrides
    from toolkit.config import load_run_config
    from toolkit.planning.learning_rate import ScaledRate

    scaled = ScaledRate(load_run_config(config, overrides), recipe_tokens)
    for line in scaled.describe():
        typer.echo(line, err=True)
    return [*overrides, *scaled.overrides()]


def _draw_schedule(config: Path, overrides: list[str]) -> None:
    from toolkit.config import load_run_config
    from toolkit.planning.learning_rate import draw_schedule

    for line in draw_schedule(load_run_config(config, overrides)):
        print(line)
