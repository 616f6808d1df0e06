"""`toolkit train`: a run on its strategy, from the launch line to the exit code."""

from pathlib import Path
from typing import Annotated

import typer

from toolkit.commands.options import Overrides

RunFileOrPlan = Annotated[
    Path | None, typer.Option(help="The run configuration.", metavar="RUN.yaml")
]


def train(
    strategy: Annotated[
        str | None, typer.Option(help="One of configs/accelerate, or a launch file.")
    ] = None,
    config: RunFileOrPlan = None,
    plan: Annotated[
        Path | None,
        typer.Option(help="A folder that plan --write made, in place of both.", metavar="DIR"),
    ] = None,
    overrides: Overrides = None,
    num_processes: Annotated[
        int | None, typer.Option(help="Processes to start; else the launch file's.")
    ] = None,
    scale_lr_from: Annotated[
        int | None,
        typer.Option(
            help="Tokens per step that the learning rate was chosen for.", min=1, metavar="TOKENS"
        ),
    ] = None,
    show_schedule: Annotated[
        bool, typer.Option("--show-schedule", help="Draw the learning rate, and start nothing.")
    ] = False,
    strict: Annotated[
        bool, typer.Option("--strict", help="Refuse to skip a damaged checkpoint.")
    ] = False,
    verbose: Annotated[bool, typer.Option("--verbose", help="Print every check.")] = False,
    quiet: Annotated[
        bool, typer.Option("--quiet", help="Print warnings and errors alone.")
    ] = False,
) -> None:
    """Print the `accelerate launch` line of a run, run it, and return the run's exit code.

    The pair of files and the data are checked before anything is started.

    Example: toolkit train --strategy fsdp2 --num-processes 2 --config my.yaml
    """
    from toolkit.training.start import start

    strategy, config = _files(strategy, config, plan)
    overrides = _with_learning_rate(config, overrides or [], scale_lr_from)
    if show_schedule:
        _draw_schedule(config, overrides)
        return
    flags = {"--strict": strict, "--verbose": verbose, "--quiet": quiet}
    raise typer.Exit(
        start(
            strategy,
            config,
            overrides,
            num_processes=num_processes,
            options=[flag for flag, is_given in flags.items() if is_given],
        )
    )


def _files(strategy: str | None, config: Path | None, plan: Path | None) -> tuple[str, Path]:
    """Return the launch file and the run configuration.

    Raises:
        UsageError: neither a plan nor both of them were given.
    """
    from toolkit.errors import UsageError
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
