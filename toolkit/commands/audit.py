"""`toolkit audit`: what a script that nobody here wrote really does with its gradients."""

from pathlib import Path
from typing import Annotated

import typer


def audit(
    command: Annotated[list[str], typer.Argument(metavar="-- COMMAND...", show_default=False)],
    steps: Annotated[int, typer.Option(help="Optimizer steps to watch.", min=1, max=1000)] = 3,
    stop: Annotated[bool, typer.Option("--stop", help="End the command after them.")] = False,
    html: Annotated[
        Path | None, typer.Option(help="Write the page here as well.", metavar="FILE")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Run a training command unchanged and report what its gradients go through.

    Example: toolkit audit -- torchrun --nproc-per-node 2 their_script.py
    """
    import json
    from tempfile import TemporaryDirectory

    from toolkit.audit.command import run_command
    from toolkit.audit.report import build_report, to_html

    with TemporaryDirectory(prefix="audit-") as name:
        folder = Path(name)
        code = run_command(command, folder, steps=steps, stops=stop, quiet=as_json)
        report = build_report(folder, code)
    if html is not None:
        html.write_text(to_html(report, command))
    lines = [json.dumps(report.to_json(), indent=2)] if as_json else report.lines()
    for line in lines:
        typer.echo(line)
    raise typer.Exit(1 if report.findings else 0)
