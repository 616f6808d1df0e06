"""`toolkit plan`: the fastest configuration that fits, and why."""

import json
from typing import TYPE_CHECKING, Annotated

import typer

from toolkit.commands import options

if TYPE_CHECKING:
    from toolkit.config import RunConfig
    from toolkit.memory.largest import StepTokens
    from toolkit.prediction.search import Answer, Cluster

Gpus = Annotated[int | None, typer.Option(help="GPUs of all machines.", min=1, max=1_000_000)]
GpuName = Annotated[str, typer.Option(help="Which: A100-80, H100-80, as nvidia-smi says.")]
Between = Annotated[str | None, typer.Option(help="A machine's link to the others: 400Gbit.")]
Tokens = Annotated[int | None, typer.Option(help="Tokens per optimizer step.", min=1)]
Steps = Annotated[int | None, typer.Option(help="Micro-steps per optimizer step.", min=1)]
Strategies = Annotated[str | None, typer.Option(help="Comma-separated.", show_default="all")]


def plan(
    config: options.RunFileOrDefaults = None,
    overrides: options.Overrides = None,
    preset: options.Preset = None,
    gpus: Gpus = None,
    gpu: GpuName = "H100-80",
    per_machine: options.PerMachine = 8,
    between_machines: Between = None,
    tokens_per_step: Tokens = None,
    micro_batch_size: options.MicroBatchSize = None,
    grad_accum_steps: Steps = None,
    strategies: Strategies = None,
    as_json: options.AsJson = False,
) -> None:
    """Name the fastest configuration that fits, and why.

    Example: toolkit plan --preset gpt2-xl --gpus 64 --gpu H100-80 --between-machines 400Gbit
    """
    from toolkit.engines.strategies import STRATEGIES
    from toolkit.errors import UsageError
    from toolkit.prediction.batch import solve_batch
    from toolkit.prediction.reason import reason_for
    from toolkit.prediction.search import search
    from toolkit.verify.options import choices

    run = _in_half_precision(
        options.load_run(config, overrides or [], preset=preset, micro_batch_size=micro_batch_size),
        is_a_file=config is not None,
    )
    if gpus is None or grad_accum_steps is not None:
        solved = solve_batch(
            tokens_per_step=tokens_per_step,
            seq_len=run.data.seq_len,
            micro_batch_size=micro_batch_size,
            grad_accum_steps=grad_accum_steps,
            gpus=gpus,
        )
        gpus, tokens_per_step = solved.world_size, solved.tokens_per_step
        micro_batch_size = solved.micro_batch_size
        typer.echo(solved.describe(), err=True)
    cluster = _cluster(gpu, gpus, per_machine, between_machines)
    tokens = _whole_steps(run, tokens_per_step, gpus, micro_batch_size)
    asked = choices("--strategies", strategies, STRATEGIES) if strategies else STRATEGIES
    answer = search(run, tokens, cluster, asked)
    if not answer.rows:
        raise UsageError(f"none of {', '.join(asked)} runs on {gpus} GPUs")
    question = {
        "gpu": cluster.gpu.name,
        "gpus": gpus,
        "per_machine": per_machine,
        "between_machines": between_machines,
        "tokens_per_step": tokens.wanted,
        "parameters": run.model.sizes().parameter_count,
    }
    reason = reason_for(answer, cluster.gpu)
    _print_json(question, answer, reason) if as_json else _print_table(answer, reason)


def _in_half_precision(run: "RunConfig", *, is_a_file: bool) -> "RunConfig":
    from toolkit.errors import UsageError

    if not is_a_file and "precision" not in run.model_fields_set:
        typer.echo("precision: bf16, as none was given", err=True)
        return run.model_copy(update={"precision": "bf16"})
    if run.precision == "fp32":
        raise UsageError("precision fp32: plan knows speeds in bf16 and fp16; set precision=bf16")
    return run


def _cluster(gpu: str, gpus: int, per_machine: int, between_machines: str | None) -> "Cluster":
    from toolkit.errors import UsageError
    from toolkit.memory.hardware import find_gpu
    from toolkit.prediction.devices import find_speed
    from toolkit.prediction.network import parse_rate
    from toolkit.prediction.search import Cluster

    if gpus > per_machine and between_machines is None:
        raise UsageError(
            f"{gpus} GPUs are {-(-gpus // per_machine)} machines of {per_machine}; give the link "
            "of a machine to the others, such as --between-machines 400Gbit"
        )
    if gpus > per_machine and gpus % per_machine:
        raise UsageError(f"{gpus} GPUs do not fill machines of {per_machine}; set --per-machine")
    found = find_gpu(gpu)
    return Cluster(
        gpu=found,
        speed=find_speed(found.name),
        gpus=gpus,
        per_machine=per_machine,
        between=None if between_machines is None else parse_rate(between_machines),
    )


def _whole_steps(
    run: "RunConfig", tokens_per_step: int | None, gpus: int, micro_batch_size: int | None
) -> "StepTokens":
    """Return the tokens of a step, which must be whole micro-steps of all GPUs."""
    from toolkit.errors import UsageError
    from toolkit.memory.largest import StepTokens

    wanted = tokens_per_step or run.batch.tokens_per_step
    tokens = StepTokens(wanted=wanted, is_fixed=True, only=micro_batch_size)
    if not tokens.micro_batches(seq_len=run.data.seq_len, world_size=gpus):
        wave = run.data.seq_len * gpus * (micro_batch_size or 1)
        nearest = max(1, round(wanted / wave)) * wave
        raise UsageError(
            f"{wanted:,} tokens per step are no multiple of {wave:,} on {gpus} GPUs; "
            f"the nearest that works is --tokens-per-step {nearest}"
        )
    return tokens


def _print_json(question: dict[str, object], answer: "Answer", reason: str) -> None:
    best = answer.best
    document = {
        "question": question,
        "candidates": answer.candidates,
        "best": best.as_json() if best else None,
        "rows": [row.as_json() for row in answer.rows],
        "reason": reason,
    }
    print(json.dumps(document, indent=2))


def _print_table(answer: "Answer", reason: str) -> None:
    from toolkit.memory.hardware import in_gib
    from toolkit.prediction.reason import describe

    print(f"{answer.candidates:,} candidates; each strategy's best, the fastest first")
    for row in answer.best_per_strategy():
        low, high = (f"{1e3 * seconds:,.0f}" for seconds in row.range_s)
        fits = "" if row.fits else "  does not fit"
        print(f"{low:>8} - {high:>8} ms  {in_gib(row.peak):>7} GiB  {describe(row)}{fits}")
    print(reason)
