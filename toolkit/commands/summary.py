"""`toolkit summary`: what a run did, read from its folder."""

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from toolkit.commands.options import Overrides

_SHOWN = {"reason", "parameters", "strategy", "world_size", "tokens_per_s"}


def summary(
    config: Annotated[Path, typer.Argument(metavar="RUN.yaml", show_default=False)],
    overrides: Overrides = None,
) -> None:
    """Say what a run did: its loss, speed, last sample and folder."""
    for line in summarise(config, overrides or []):
        typer.echo(line)


def summarise(config_file: Path, overrides: Sequence[str] = ()) -> list[str]:
    """Return lines for a person: the loss at both ends, validation, speed, sample and folder.

    Another line says how the last start ended, where it changed nothing of the run.

    Raises:
        UsageError: the run has not been started, or has no step yet.
    """
    from toolkit.config import load_run_config
    from toolkit.errors import UsageError
    from toolkit.training.metrics import read_metrics
    from toolkit.training.run_folder import read_last_start, read_summary, run_folder

    folder = run_folder(load_run_config(config_file, overrides))
    summary = read_summary(folder)
    records = read_metrics(folder / "metrics.jsonl")
    steps = [record for record in records if record["kind"] == "train"]
    if summary is None or not steps or not summary.keys() >= _SHOWN:
        raise UsageError(f"{folder} holds no finished start of a run; train it first")
    evaluations = [record for record in records if record["kind"] == "eval"]
    samples = [record for record in records if record["kind"] == "sample"]
    first, last = steps[0], steps[-1]
    return [
        f"{summary['reason']}: {last['step']} steps, {last['tokens']:,} tokens, "
        f"{summary['parameters']:,} parameters, {summary['strategy']} on {summary['world_size']}",
        f"training loss   {first['loss']:.3f} at step {first['step']}, "
        f"{last['loss']:.3f} at step {last['step']}",
        *(f"validation loss {found['loss']:.3f} at step {found['step']}" for found in evaluations),
        f"speed           {_rate(summary)}",
        *(f"sample          {found['text']!r}" for found in samples[-1:]),
        *_last_start(read_last_start(folder), summary),
        f"run folder      {folder}",
    ]


def _last_start(ended: dict[str, Any] | None, summary: dict[str, Any]) -> list[str]:
    if ended is None or ended.items() <= summary.items():
        return []
    return [f"last start      ended with {ended['exit']}: {ended.get('reason')}"]


def _rate(summary: dict[str, Any]) -> str:
    rate = summary["tokens_per_s"]
    return f"{rate:,.0f} tokens/s, median of the steps" if rate else "no step was timed"
