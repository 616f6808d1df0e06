"""`toolkit eval`: what a trained model is worth on text and on questions."""

import json
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from toolkit.commands.options import AsJson, Tokenizer, TrainedModel
from toolkit.errors import UsageError

if TYPE_CHECKING:
    from toolkit.engines.ranks import Ranks
    from toolkit.inference.choices import Accuracy
    from toolkit.inference.loss import TextLoss
    from toolkit.inference.source import Source
    from toolkit.inference.trained import Trained


Task = Annotated[
    tuple[str, Path] | None,
    typer.Option(
        help="Multiple choice instead: hellaswag, or choice for JSON-lines with context, "
        "choices and answer.",
        metavar="NAME FILE",
        show_default=False,
    ),
]


def evaluate(
    run: TrainedModel,
    step: Annotated[
        str | None,
        typer.Option(
            help="Which checkpoint, or all.", metavar="N|all", show_default="the newest good one"
        ),
    ] = None,
    data: Annotated[
        Path | None,
        typer.Option(
            help="Shards, or text in any form of `toolkit data prepare`.",
            metavar="DIR|FILE",
            show_default="the run's data.val",
        ),
    ] = None,
    sequences: Annotated[
        int | None, typer.Option(help="The first so many.", min=1, show_default="all")
    ] = None,
    task: Task = None,
    tokenizer: Tokenizer = None,
    as_json: AsJson = False,
) -> None:
    """Report loss, perplexity and bits per byte, or the accuracy in multiple choice.

    Several processes share the work: torchrun --nproc-per-node 4 -m toolkit eval runs/demo

    Example: toolkit eval runs/demo --step all
    """
    from toolkit.inference.choices import TASKS
    from toolkit.inference.ranks import joined_ranks
    from toolkit.inference.source import find_all, find_source
    from toolkit.inference.trained import default_device, read_trained

    if task is not None and task[0] not in TASKS:
        raise UsageError(f"unknown task '{task[0]}'; there are {', '.join(TASKS)}")
    sources = find_all(run) if step == "all" else [find_source(run, step=_number(step))]
    with joined_ranks() as ranks:
        for source in sources:
            trained = read_trained(source, device=default_device(), tokenizer=tokenizer)
            report = (
                _loss(trained, data, sequences, ranks, as_json=as_json)
                if task is None
                else _accuracy(trained, *task, ranks, as_json=as_json)
            )
            if ranks.rank == 0:
                typer.echo(report)


def _number(step: str | None) -> int | None:
    if step is None or step.isdecimal():
        return None if step is None else int(step)
    raise UsageError(f"--step must be the number of a step or 'all', got '{step}'")


def _loss(
    trained: "Trained", data: Path | None, sequences: int | None, ranks: "Ranks", *, as_json: bool
) -> str:
    from toolkit.data.batches import eval_batches
    from toolkit.inference.loss import text_loss
    from toolkit.inference.text_data import open_tokens

    with open_tokens(trained, data) as dataset:
        batches = eval_batches(
            dataset,
            micro_batch_size=1,
            world_size=ranks.world_size,
            rank=ranks.rank,
            max_sequences=sequences,
        )
        found = text_loss(trained, batches, ranks)
    source = trained.source
    return json.dumps(_described(source, found)) if as_json else _loss_line(source, found)


def _described(source: "Source", found: "TextLoss") -> dict[str, Any]:
    return {
        "run": source.name,
        "step": source.step,
        "loss": found.loss,
        "perplexity": found.perplexity,
        "tokens": found.tokens,
        "bits_per_byte": found.bits_per_byte,
        "bytes": found.bytes,
    }


def _loss_line(source: "Source", found: "TextLoss") -> str:
    rate = found.bits_per_byte
    return (
        f"{_title(source)} | loss {found.loss:.4f} | perplexity {found.perplexity:,.2f} | "
        f"{'' if rate is None else f'{rate:.4f} bits per byte | '}{found.tokens:,} tokens"
    )


def _accuracy(trained: "Trained", task: str, file: Path, ranks: "Ranks", *, as_json: bool) -> str:
    from toolkit.inference.choices import score

    found, source = score(trained, task, file, ranks), trained.source
    if not as_json:
        return "\n".join(f"{_title(source)} | {task} | {_accuracy_line(style)}" for style in found)
    scores = [{**asdict(style), "acc": style.acc, "acc_norm": style.acc_norm} for style in found]
    return json.dumps({"run": source.name, "step": source.step, "task": task, "scores": scores})


def _accuracy_line(found: "Accuracy") -> str:
    return (
        f"{found.style:<9} | acc {found.acc:.4f} | acc_norm {found.acc_norm:.4f} (per "
        f"{found.per}) | {found.questions:,} question{'s' if found.questions != 1 else ''}"
    )


def _title(source: "Source") -> str:
    return source.name if source.step is None else f"step {source.step:>5}"
