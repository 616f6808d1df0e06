"""`toolkit plan`: the fastest configuration that fits, why, and what it costs."""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from toolkit.commands import options

if TYPE_CHECKING:
    from toolkit.config import RunConfig
    from toolkit.planning.answer import Answer
    from toolkit.planning.cluster import Cluster, ClusterFile
    from toolkit.planning.question import Question

Gpus = Annotated[int | None, typer.Option(help="GPUs of all machines.", min=1, max=1_000_000)]
GpuName = Annotated[
    str | None,
    typer.Option(help="Which: A100-80, H100-80, as nvidia-smi says.", show_default="H100-80"),
]
PerMachine = Annotated[
    int | None,
    typer.Option(help="GPUs per machine.", min=1, max=1_000_000, show_default="8"),
]
Between = Annotated[str | None, typer.Option(help="A machine's link to the others: 400Gbit.")]
ClusterName = Annotated[
    str | None, typer.Option("--cluster", help="A known machine, or a YAML file of one.")
]
Tokens = Annotated[int | None, typer.Option(help="Tokens per optimizer step.", min=1)]
Steps = Annotated[int | None, typer.Option(help="Micro-steps per optimizer step.", min=1)]
TrainTokens = Annotated[
    int | None,
    typer.Option(
        help="Tokens of the whole run, for time and price.",
        min=1,
        show_default="steps of --config",
    ),
]
Explain = Annotated[
    Path | None, typer.Option(help="Where the step time of a run went.", metavar="RUN")
]
Strategies = Annotated[str | None, typer.Option(help="Comma-separated.", show_default="all")]
Curve = Annotated[Literal["gpus"] | None, typer.Option(help="Scale the best to thousands of GPUs.")]
BytesPerWeight = Annotated[
    bool, typer.Option("--bytes-per-weight", help="What each strategy keeps of the model.")
]
Plot = Annotated[Path | None, typer.Option(help="Draw the curve.", metavar="FILE")]
Measured = Annotated[
    Path | None,
    typer.Option(help="A run on this GPU, by whose step computation is scaled.", metavar="RUN"),
]
OnThisMachine = Annotated[
    bool, typer.Option("--here", help="For this machine, which is measured once, in a minute.")
]
Write = Annotated[
    Path | None, typer.Option(help="Write launch.yaml and run.yaml here.", metavar="DIR")
]


def plan(
    config: options.RunFileOrDefaults = None,
    overrides: options.Overrides = None,
    preset: options.Preset = None,
    gpus: Gpus = None,
    gpu: GpuName = None,
    per_machine: PerMachine = None,
    between_machines: Between = None,
    cluster: ClusterName = None,
    tokens_per_step: Tokens = None,
    micro_batch_size: options.MicroBatchSize = None,
    grad_accum_steps: Steps = None,
    train_tokens: TrainTokens = None,
    strategies: Strategies = None,
    curve: Curve = None,
    plot: Plot = None,
    bytes_per_weight: BytesPerWeight = False,
    write: Write = None,
    measured: Measured = None,
    here: OnThisMachine = False,
    explain: Explain = None,
    as_json: options.AsJson = False,
) -> None:
    """Name the fastest configuration that fits, why, and what a run takes.

    Example: toolkit plan --preset gpt2-xl --gpus 64 --gpu H100-80 --between-machines 400Gbit
    """
    from toolkit.engines.strategies import STRATEGIES
    from toolkit.errors import UsageError
    from toolkit.planning.answer import find_answer
    from toolkit.planning.question import Dials, build_question
    from toolkit.verify.options import choices

    if explain is not None:
        from toolkit.runs.explain import explain as explain_run

        print(*explain_run(explain), sep="\n")
        return
    if as_json and (curve or plot or bytes_per_weight):
        raise UsageError("--curve, --plot and --bytes-per-weight print tables; leave --json out")
    run = options.load_run(
        config, overrides or [], preset=preset, micro_batch_size=micro_batch_size
    )
    if not here:
        run = _in_half_precision(run, is_a_file=config is not None)
    question = build_question(
        run,
        Dials(
            tokens_per_step=tokens_per_step,
            micro_batch_size=micro_batch_size,
            grad_accum_steps=grad_accum_steps,
            gpus=gpus,
        ),
        _machine(cluster, gpu),
        per_machine=per_machine,
        between=between_machines,
        strategies=choices("--strategies", strategies, STRATEGIES) if strategies else STRATEGIES,
        measure=_measured_machine if here else None,
    )
    if measured is not None:
        question = _anchored(question, measured)
    if question.solved is not None:
        typer.echo(question.solved.describe(), err=True)
    if bytes_per_weight:
        _print_states(run, question)
        return
    answer = find_answer(question.search, question.cluster)
    if train_tokens is None and config is not None:
        train_tokens = run.training.steps * question.search.tokens.wanted
    _print(question, answer, train_tokens, in_json=as_json)
    if curve is not None or plot is not None:
        _print_scaling(answer, plot)
    if write is not None:
        _write(answer, run, write)


def _in_half_precision(run: "RunConfig", *, is_a_file: bool) -> "RunConfig":
    from toolkit.errors import UsageError

    if not is_a_file and "precision" not in run.model_fields_set:
        typer.echo("precision: bf16, as none was given", err=True)
        return run.model_copy(update={"precision": "bf16"})
    if run.precision == "fp32":
        raise UsageError("precision fp32: plan knows speeds in bf16 and fp16; set precision=bf16")
    return run


def _machine(cluster: str | None, gpu: str | None) -> "ClusterFile":
    from toolkit.planning.cluster import ClusterFile, load_cluster_file

    if cluster is None:
        return ClusterFile(gpu=gpu or "H100-80", per_machine=8)
    machine = load_cluster_file(cluster)
    return machine if gpu is None else machine.model_copy(update={"gpu": gpu})


def _measured_machine(ranks: int) -> "Cluster":
    from toolkit.planning.here import cluster_here, find_here, measure_here

    here, profile = find_here(ranks)
    if profile is None:
        typer.echo(f"measuring {here.device} with {ranks} ranks, about a minute", err=True)
        profile = measure_here(ranks)
    return cluster_here(here, profile)


def _anchored(question: "Question", run: Path) -> "Question":
    from dataclasses import replace

    from toolkit.planning.anchored import anchored

    speed = anchored(question.cluster, run)
    typer.echo(speed.anchor.describe(), err=True)
    return replace(question, cluster=replace(question.cluster, speed=speed))


def _print(
    question: "Question", answer: "Answer", train_tokens: int | None, *, in_json: bool
) -> None:
    """Print the answer.

    Raises:
        UsageError: nothing fits; the message names what does.
    """
    from toolkit.errors import UsageError
    from toolkit.planning.nearest import nearest_that_fits
    from toolkit.planning.reason import reason_for
    from toolkit.planning.report import report

    if in_json:
        document = {
            "question": question.as_json(),
            "candidates": answer.size,
            "best": answer.best.as_json() if answer.best else None,
            "rows": [row.as_json() for row in answer.rows],
            "reason": reason_for(answer),
        }
        print(json.dumps(document, indent=2))
    else:
        for line in report(answer, train_tokens):
            print(line)
    if answer.best is None:
        raise UsageError(f"{reason_for(answer)}; {nearest_that_fits(question.search, answer)}")


def _write(answer: "Answer", run: "RunConfig", folder: Path) -> None:
    from toolkit.planning.write import start_lines, write_plan

    if answer.best is None:
        return
    for path in write_plan(answer.best, run, folder):
        typer.echo(f"wrote {path}", err=True)
    for line in start_lines(answer.best, folder):
        typer.echo(line, err=True)


def _print_states(run: "RunConfig", question: "Question") -> None:
    from toolkit.planning.states import describe_states, states_rows

    rows = states_rows(run, question.cluster)
    for line in describe_states(rows, adam=run.optimizer.name == "adamw"):
        print(line)


def _print_scaling(answer: "Answer", plot: Path | None) -> None:
    from toolkit.planning.scaling import describe_scaling, plot_scaling

    if answer.best is None:
        return
    for line in describe_scaling(answer.best):
        print(line)
    if plot is not None:
        typer.echo(f"drawn in {plot_scaling(answer.best, plot)}", err=True)
