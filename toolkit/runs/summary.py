"""What a finished run did, in a few lines."""

import math
from collections.abc import Iterator, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

from toolkit.counted import counted
from toolkit.data.index import read_index
from toolkit.errors import UsageError
from toolkit.model.flops import utilisation
from toolkit.model.sizes import ModelSizes
from toolkit.runs.record import RunRecord, read_run
from toolkit.training.run_folder import read_last_start

_SHOWN = {"reason", "parameters", "strategy", "world_size", "tokens_per_s"}
_SIZES = ("n_layer", "n_head", "n_embd", "vocab_size", "block_size")
# Single steps are noisy: their mean over a tenth of the run, but not over more than these.
_MOST_LAST_STEPS = 100


def summarise(path: Path, overrides: Sequence[str] = ()) -> list[str]:
    """Return lines for a person: loss, validation, speed, what was seen, sample and folder.

    The run is given as to `find_run`.

    Another line reports how the last start ended, where it changed nothing of the run.

    Raises:
        UsageError: the run has not been started, or has no step yet.
    """
    run = read_run(path, overrides)
    if run.summary is None or not run.train or not run.summary.keys() >= _SHOWN:
        raise UsageError(f"{run.folder} holds no finished start of a run; train it first")
    summary, last = run.summary, run.train[-1]
    samples = [record for record in run.records if record["kind"] == "sample"]
    return [
        f"{summary['reason']}: {counted(last['step'], 'step')}, {last['tokens']:,} tokens, "
        f"{counted(summary['parameters'], 'parameter')}, "
        f"{summary['strategy']} on {summary['world_size']}",
        *_losses(run),
        f"speed           {_rate(run, summary)}",
        *_seen(run),
        *(f"sample          {found['text']!r}" for found in samples[-1:]),
        *_last_start(read_last_start(run.folder), summary),
        f"run folder      {run.folder}",
    ]


def _losses(run: RunRecord) -> Iterator[str]:
    first, last = run.train[0], run.train[-1]
    yield (
        f"training loss   {first['loss']:.3f} at step {first['step']}, "
        f"{last['loss']:.3f} at step {last['step']}"
    )
    recent = run.train[-min(max(len(run.train) // 10, 1), _MOST_LAST_STEPS) :]
    if len(recent) > 1:
        mean = fmean(record["loss"] for record in recent)
        yield f"                {mean:.3f} mean of the last {len(recent)} steps"
    for found in run.evaluations:
        yield (
            f"validation loss {found['loss']:.3f} at step {found['step']}, perplexity "
            f"{math.exp(min(found['loss'], 700)):,.1f}"
        )


def _rate(run: RunRecord, summary: dict[str, Any]) -> str:
    rate = summary["tokens_per_s"]
    if not rate:
        return "no step was timed"
    share = _utilisation(run, rate)
    mfu = "" if share is None else f", {share:.1%} MFU"
    return f"{rate:,.0f} tokens/s, median of the steps{mfu}"


def _utilisation(run: RunRecord, tokens_per_s: float) -> float | None:
    gpus = run.environment.get("devices", {}).get("names")
    if not gpus or not run.config or run.summary is None:
        return None
    return utilisation(
        ModelSizes(**{name: run.config[f"model.{name}"] for name in _SIZES}),
        seq_len=run.config["data.seq_len"],
        tokens_per_s=tokens_per_s,
        device=gpus[0],
        devices=run.summary["world_size"],
        precision=run.config["precision"],
    )


def _seen(run: RunRecord) -> Iterator[str]:
    """Time in steps, and how often the data was gone through where its size is written down."""
    if not all("step_s" in record for record in run.train):
        return
    minutes = run.places("hours")[-1] * 60
    hours = f"{minutes / 60:,.1f} hours" if minutes >= 60 else f"{minutes:,.1f} minutes"
    total = _data_tokens(run)
    epochs = f", {run.train[-1]['tokens'] / total:.2f} epochs" if total else ""
    yield f"steps took      {hours}{epochs}"


def _data_tokens(run: RunRecord) -> int | None:
    indexes = [read_index(Path(name)) for name in run.config.get("data.train", [])]
    return sum(index.tokens for index in indexes if index) if indexes and all(indexes) else None


def _last_start(ended: dict[str, Any] | None, summary: dict[str, Any]) -> list[str]:
    if ended is None or ended.items() <= summary.items():
        return []
    return [f"last start      ended with {ended['exit']}: {ended.get('reason')}"]
