"""`toolkit estimate`: memory per GPU for every strategy and mode."""

import json
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from toolkit.commands import options

if TYPE_CHECKING:
    from toolkit.memory.hardware import Gpu
    from toolkit.memory.question import Question
    from toolkit.memory.report import Row
    from toolkit.program.settings import StepSettings

WorldSize = Annotated[int, typer.Option(help="Ranks.", min=1, max=1_000_000)]
Strategies = Annotated[
    str | None,
    typer.Option(help="Comma-separated.", show_default="all that the method can answer for"),
]
Device = Annotated[Literal["cuda", "cpu"], typer.Option(help="What it runs on.")]
MaxMicroBatch = Annotated[
    bool,
    typer.Option(
        "--max-micro-batch", help="Find the largest micro-batch that fits and the run can use."
    ),
]
Method = Annotated[
    Literal["formula", "trace"],
    typer.Option(help="Closed form; or the step on fake tensors, its loss in activations."),
]
Attention = Annotated[
    Literal["flash", "math"] | None,
    typer.Option(help="Attention kernel.", show_default="what the run would get"),
]
Foreach = Annotated[
    bool | None, typer.Option("--foreach", help="The optimizer's foreach kernels, not fused.")
]
GradientAsBucketView = Annotated[
    bool | None, typer.Option(help="DDP's gradients live in its buckets.", show_default="yes")
]
SetToNone = Annotated[
    bool | None, typer.Option(help="Free gradients between steps.", show_default="yes, but DDP's")
]
OffloadOptimizer = Annotated[
    bool | None, typer.Option("--offload-optimizer", help="ZeRO's optimizer state in host memory.")
]
Plot = Annotated[Path | None, typer.Option(help="Draw the step of the first row.", metavar="FILE")]


def estimate(
    config: options.RunFileOrDefaults = None,
    overrides: options.Overrides = None,
    preset: options.Preset = None,
    micro_batch_size: options.MicroBatchSize = None,
    world_size: WorldSize = 8,
    per_machine: options.PerMachine = 8,
    strategies: Strategies = None,
    device: Device = "cuda",
    gpu: options.Gpu = None,
    max_micro_batch: MaxMicroBatch = False,
    method: Method = "formula",
    attention: Attention = None,
    foreach: Foreach = None,
    gradient_as_bucket_view: GradientAsBucketView = None,
    set_to_none: SetToNone = None,
    offload_optimizer: OffloadOptimizer = None,
    plot: Plot = None,
    as_json: options.AsJson = False,
) -> None:
    """Estimate the memory that a run takes per GPU, for every strategy and mode.

    Example: toolkit estimate --config my.yaml --world-size 8 --gpu A100-80
    """
    from toolkit.engines.strategies import STRATEGIES
    from toolkit.launch.layout import Layout
    from toolkit.memory.question import Question, step_tokens
    from toolkit.verify.options import choices

    overrides = overrides or []
    run = options.load_run(config, overrides, preset=preset, micro_batch_size=micro_batch_size)
    question = Question(
        config=run,
        tokens=step_tokens(run, is_a_file=config is not None),
        strategies=None if strategies is None else choices("--strategies", strategies, STRATEGIES),
        accumulation=run.accumulation if _names_a_mode(overrides) else None,
        layout=Layout(world_size=world_size, per_machine=per_machine),
        device=device,
        gpu=gpu,
        largest=max_micro_batch,
        changes=_given(
            attention=attention,
            foreach=foreach,
            gradient_as_bucket_view=gradient_as_bucket_view,
            set_to_none=set_to_none,
            offload_optimizer=offload_optimizer,
        ),
        method=method,
    )
    _answer(question, plot, in_json=as_json)


def _names_a_mode(overrides: list[str]) -> bool:
    """Whether one mode alone is asked for; a file's own does not hide the others."""
    return any(word.partition("=")[0].strip() == "accumulation" for word in overrides)


def _given(**changes: Any) -> dict[str, Any]:
    return {name: value for name, value in changes.items() if value is not None}


def _answer(question: "Question", plot: Path | None, *, in_json: bool) -> None:
    from toolkit.memory import remarks
    from toolkit.memory.largest import largest_micro_batch
    from toolkit.memory.report import as_json, print_table
    from toolkit.memory.states import checkpoint_bytes

    chosen = question.rows()
    gpus = _gpus(question)
    for reason in chosen.skipped:
        _note(f"skipped: {reason}")
    if question.untraced:
        _note(f"not traced: {', '.join(question.untraced)}, which need real tensors")
    for assumption in remarks.describe_assumptions(chosen.settings, question.tokens):
        _note(assumption)
    rows = [_row(settings, question.method) for settings in chosen.settings]
    if question.largest:
        rows = [
            replace(row, largest=largest_micro_batch(row.settings, question.tokens, gpus[0]))
            for row in rows
        ]
    model, optimizer = question.config.model, question.config.optimizer
    checkpoint = checkpoint_bytes(model.sizes().parameter_count, adam=optimizer.name == "adamw")
    if plot is not None:
        from toolkit.memory.plot import plot_step

        gpu = gpus[0] if question.gpu else None
        _note(f"drawn in {plot_step(chosen.settings[0], plot, gpu)}")
    if in_json:
        print(json.dumps(as_json(rows, gpus, checkpoint), indent=2))
        return
    for line in remarks.describe_rows(rows):
        print(line)
    print_table(rows, gpus)
    for allowance in dict.fromkeys(gpu.calibration.describe() for gpu in gpus):
        print(f"fits: {allowance}")
    most = max(settings.world_size for settings in chosen.settings)
    print(remarks.describe_checkpoint(checkpoint, most))
    if model.compile:
        print(remarks.describe_compiled(question.method))


def _note(line: str) -> None:
    typer.echo(line, err=True)


def _gpus(question: "Question") -> "list[Gpu]":
    """The GPUs that are judged; a run on CPUs has none."""
    from toolkit.errors import UsageError
    from toolkit.memory.calibration import Calibration, load_calibrations
    from toolkit.memory.hardware import find_gpu, load_gpus

    if question.device == "cpu":
        return []
    try:
        calibrations = load_calibrations()
    except UsageError as error:
        _note(f"warning: {error}; until then: {Calibration().describe()}")
        calibrations = {}
    if question.gpu is None:
        return load_gpus(calibrations)
    return [find_gpu(question.gpu, calibrations)]


def _row(settings: "StepSettings", method: str) -> "Row":
    if method == "formula":
        from toolkit.memory.report import estimate_row

        return estimate_row(settings)
    from toolkit.counted import counted
    from toolkit.verify.traced import trace_row

    ranks = counted(settings.world_size, "rank")
    words = f"{settings.strategy} {settings.accumulation} on {ranks}"
    return trace_row(settings, lambda step: _note(f"tracing {words}, step {step} of 2"))
