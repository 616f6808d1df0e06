"""`toolkit rehearse`: several machines pretended on one, and faults with what must come of them."""

from typing import Annotated

import typer

from toolkit.commands.options import Overrides, RunFile


def rehearse(
    config: RunFile,
    overrides: Overrides = None,
    machines: Annotated[int, typer.Option(help="Machines to pretend.", min=2, max=64)] = 2,
    per_machine: Annotated[int, typer.Option(help="Processes on each.", min=1)] = 2,
    strategy: Annotated[str, typer.Option(help="One of configs/accelerate.")] = "ddp",
    link: Annotated[
        str, typer.Option(help="Rate of each machine's link.", metavar="RATE")
    ] = "1Gbit",
    fault: Annotated[
        list[str] | None,
        typer.Option(help="NAME or NAME@SECONDSs; several, one run each.", metavar="FAULT"),
    ] = None,
    steps: Annotated[int, typer.Option(help="Steps of each run.", min=1)] = 50,
) -> None:
    """Run launch/several_nodes.sh on machines pretended by network namespaces; needs root.

    A fault befalls the last machine, so many seconds after the first step. It ends with 0 if what
    must come of each fault has come of it, and with 1 if not.

    Example: toolkit rehearse --machines 2 --per-machine 2 --config my.yaml --fault link-down@20s
    """
    import signal
    import sys

    from toolkit.launch.links import read_rate
    from toolkit.rehearse.faults import read_fault
    from toolkit.rehearse.machines import Plan
    from toolkit.rehearse.rehearsal import rehearse

    plan = Plan(
        machines=machines,
        per_machine=per_machine,
        rate_mbit_per_s=read_rate(link),
        strategy=strategy,
        config=config,
        overrides=(*(overrides or ()), f"training.stop_at={steps}"),
    )
    # As Ctrl-C does: all that was started ends, and nothing stays behind.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    wrong = False
    for found in [read_fault(text) for text in fault or ["none"]]:
        typer.echo(f"fault      {found}: {found.ending.value}")
        problems = rehearse(plan, found, typer.echo)
        for problem in problems:
            typer.echo(f"wrong      {problem}")
        typer.echo(f"outcome    {found}: {'not as it must be' if problems else 'as it must be'}")
        wrong = wrong or bool(problems)
    raise typer.Exit(1 if wrong else 0)
