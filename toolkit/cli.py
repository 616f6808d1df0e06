"""The `toolkit` command: verbs and arguments, no logic."""

import sys
from pathlib import Path
from typing import Annotated, Literal

import typer

from toolkit import __version__
from toolkit.commands.compare import compare
from toolkit.commands.config import config
from toolkit.commands.evaluate import evaluate
from toolkit.commands.generate import generate
from toolkit.commands.init import init
from toolkit.commands.plot import plot
from toolkit.commands.runs import runs
from toolkit.engines.strategies import ACCUMULATIONS, STRATEGIES
from toolkit.errors import ReaderGone, ToolkitError, UntrustedError, UsageError
from toolkit.home import expand_words
from toolkit.standard_output import checked_stdout

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
data = typer.Typer(help="Text to token shards, and back to trust in them.", no_args_is_help=True)
app.add_typer(data, name="data")
checkpoint = typer.Typer(
    help="What a run can carry on from, and weights in transformers' layout.", no_args_is_help=True
)
app.add_typer(checkpoint, name="checkpoint")

Overrides = Annotated[
    list[str] | None, typer.Argument(metavar="[section.key=value]...", show_default=False)
]


def _print_version(is_asked: bool) -> None:
    if is_asked:
        typer.echo(f"toolkit {__version__}")
        raise typer.Exit


@app.callback()
def common(
    version: Annotated[
        bool,
        typer.Option(
            "--version", help="Print the version.", callback=_print_version, is_eager=True
        ),
    ] = False,
) -> None:
    """One GPT-2 training run, from one process to many, learning the same thing each time."""


@app.command()
def train(
    strategy: Annotated[str, typer.Option(help="One of configs/accelerate, or a launch file.")],
    config: Annotated[Path, typer.Option(help="The run configuration.", metavar="RUN.yaml")],
    overrides: Overrides = None,
    num_processes: Annotated[
        int | None, typer.Option(help="Processes to start; else as the launch file says.")
    ] = None,
    strict: Annotated[
        bool, typer.Option("--strict", help="Refuse to pass over a damaged checkpoint.")
    ] = False,
) -> None:
    """Print the `accelerate launch` line of a run, run it, and return the run's exit code.

    The pair of files and the data are checked before anything is started.
    """
    from toolkit.commands.train import train as run

    raise typer.Exit(
        run(strategy, config, overrides or [], num_processes=num_processes, strict=strict)
    )


@app.command()
def summary(
    config: Annotated[Path, typer.Argument(metavar="RUN.yaml", show_default=False)],
    overrides: Overrides = None,
) -> None:
    """Say what a run did: its loss, speed, last sample and folder."""
    from toolkit.commands.summary import summarise

    for line in summarise(config, overrides or []):
        typer.echo(line)


@app.command()
def check(
    files: Annotated[list[Path], typer.Argument(metavar="FILE...", show_default=False)],
) -> None:
    """Check run configurations and launch files, each alone and every pair of them."""
    from toolkit.launch.check import check_files

    report = check_files(files)
    for line in report.good:
        typer.echo(line)
    for line in report.problems:
        typer.echo(line, err=True)
    raise typer.Exit(UsageError.exit_code if report.problems else 0)


@app.command("verify")
def verify_engines(
    strategies: Annotated[str, typer.Option(help="Comma-separated.")] = (
        "single,ddp,fsdp2,fsdp2_no_reshard,hsdp,zero1,zero2,zero3"
    ),
    accumulation: Annotated[
        str, typer.Option(help="Comma-separated; pairs that cannot be are left out.")
    ] = "replicated,sharded,deferred",
    world_sizes: Annotated[
        str | None,
        typer.Option(
            help="Comma-separated.",
            show_default="the smallest of each: 1 for single, 4 for hsdp, 2",
        ),
    ] = None,
    grad_accum: Annotated[str, typer.Option(help="Micro-steps, comma-separated.")] = "4",
    precision: Annotated[str, typer.Option(help="Comma-separated.")] = "fp32,bf16",
    model: Annotated[
        str, typer.Option(help="A preset, or n_layer,n_head,n_embd,vocab_size,block_size.")
    ] = "2,2,32,512,32",
    steps: Annotated[int, typer.Option(help="Updates per case.", min=3, max=50)] = 10,
    controls: Annotated[
        bool, typer.Option("--controls", help="Also put faults in and see each one caught.")
    ] = False,
    timeout: Annotated[float, typer.Option(help="Seconds for one launch.")] = 300.0,
    wide: Annotated[
        bool, typer.Option("--wide", help="All columns: also traffic, what is held, replicas.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Prove that strategies and accumulation modes compute the same update, by launching them."""
    from toolkit.commands.verify import verify as run
    from toolkit.verify.options import choices, model_sizes, numbers

    code = run(
        strategies=choices("--strategies", strategies, STRATEGIES),
        accumulations=choices("--accumulation", accumulation, ACCUMULATIONS),
        world_sizes=numbers("--world-sizes", world_sizes) if world_sizes else [],
        grad_accum_steps=numbers("--grad-accum", grad_accum),
        precisions=choices("--precision", precision, ("fp32", "bf16")),
        sizes=model_sizes(model),
        steps=steps,
        with_controls=controls,
        wide=wide,
        as_json=as_json,
        timeout_s=timeout,
    )
    raise typer.Exit(code)


@app.command()
def estimate(
    config: Annotated[
        Path | None,
        typer.Option(help="A run configuration; else the defaults.", metavar="RUN.yaml"),
    ] = None,
    overrides: Overrides = None,
    preset: Annotated[str | None, typer.Option(help="Same as model.preset=...")] = None,
    micro_batch_size: Annotated[
        int | None, typer.Option(help="Same as batch.micro_batch_size=...")
    ] = None,
    world_size: Annotated[int, typer.Option(help="Ranks.", min=1, max=1_000_000)] = 8,
    per_machine: Annotated[
        int,
        typer.Option(
            help="Ranks per machine, a replica group of hybrid sharding; one machine has two.",
            min=1,
            max=1_000_000,
        ),
    ] = 8,
    strategies: Annotated[
        str | None,
        typer.Option(help="Comma-separated.", show_default="all that the method can answer for"),
    ] = None,
    device: Annotated[Literal["cuda", "cpu"], typer.Option(help="What it runs on.")] = "cuda",
    gpu: Annotated[
        str | None,
        typer.Option(help="The GPU it has to fit: A100-80, 4090, as nvidia-smi says, or 24GiB."),
    ] = None,
    max_micro_batch: Annotated[
        bool,
        typer.Option(
            "--max-micro-batch", help="Find the largest micro-batch that fits and the run can use."
        ),
    ] = False,
    method: Annotated[
        Literal["formula", "trace"],
        typer.Option(help="Closed form; or the step on fake tensors, its loss in activations."),
    ] = "formula",
    attention: Annotated[
        Literal["flash", "math"] | None,
        typer.Option(help="Attention kernel.", show_default="what the run would get"),
    ] = None,
    foreach: Annotated[
        bool | None, typer.Option("--foreach", help="The optimizer's foreach kernels, not fused.")
    ] = None,
    gradient_as_bucket_view: Annotated[
        bool | None, typer.Option(help="DDP's gradients live in its buckets.", show_default="yes")
    ] = None,
    set_to_none: Annotated[
        bool | None,
        typer.Option(help="Free gradients between steps.", show_default="yes, but DDP's"),
    ] = None,
    offload_optimizer: Annotated[
        bool | None,
        typer.Option("--offload-optimizer", help="ZeRO's optimizer state in host memory."),
    ] = None,
    plot: Annotated[
        Path | None, typer.Option(help="Draw the step of the first row.", metavar="FILE")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Say how much memory a run takes per GPU, for every strategy and mode."""
    from toolkit.commands.estimate import Question
    from toolkit.commands.estimate import estimate as run
    from toolkit.memory.rows import Ranks
    from toolkit.verify.options import choices

    short = (
        ("--preset", "model.preset", preset),
        ("--micro-batch-size", "batch.micro_batch_size", micro_batch_size),
    )
    changes = {
        "attention": attention,
        "foreach": foreach,
        "gradient_as_bucket_view": gradient_as_bucket_view,
        "set_to_none": set_to_none,
        "offload_optimizer": offload_optimizer,
    }
    run(
        Question(
            config_file=config,
            short={f"{k}={v}": f"{name} {v}" for name, k, v in short if v is not None},
            overrides=overrides or [],
            strategies=None
            if strategies is None
            else choices("--strategies", strategies, STRATEGIES),
            ranks=Ranks(world_size=world_size, per_machine=per_machine),
            device=device,
            gpu=gpu,
            largest=max_micro_batch,
            method=method,
            changes={name: value for name, value in changes.items() if value is not None},
            plot=plot,
            as_json=as_json,
        )
    )


@data.command()
def prepare(
    inputs: Annotated[list[Path], typer.Argument(metavar="INPUT...", show_default=False)],
    out: Annotated[Path, typer.Option(help="Folder for the shards and their index.")],
    skip_bad: Annotated[
        bool, typer.Option("--skip-bad", help="Leave out bad documents and count them.")
    ] = False,
    shard_tokens: Annotated[int, typer.Option(help="Tokens per shard.")] = 100_000_000,
    processes: Annotated[
        int | None, typer.Option(help="Processes that tokenise.", show_default="all cores")
    ] = None,
) -> None:
    """Turn text, Markdown and JSON-lines into token shards."""
    from toolkit.data.prepare import prepare as run

    prepared = run(
        inputs,
        out,
        skip_bad=skip_bad,
        shard_tokens=shard_tokens,
        processes=processes,
    )
    typer.echo(prepared.summary)


@data.command()
def verify(folder: Annotated[Path, typer.Argument(metavar="DIR", show_default=False)]) -> None:
    """Check prepared shards against their hashes, those of others as far as that is possible."""
    from toolkit.data.verify import verify_shards

    typer.echo(verify_shards(folder).summary)


@data.command()
def default(out: Annotated[Path, typer.Option(help="Folder for train/ and val/.")]) -> None:
    """Fetch and prepare the text that the demo run trains on."""
    from toolkit.data.default_text import prepare_default_text

    typer.echo(prepare_default_text(out).summary)


app.command()(generate)
app.command("eval")(evaluate)
app.command()(plot)
app.command()(compare)
app.command()(runs)
app.command()(init)
app.command()(config)


RunFolder = Annotated[
    Path, typer.Argument(metavar="RUN", help="<output_dir>/<run_name>", show_default=False)
]


@checkpoint.command("list")
def list_checkpoints(run: RunFolder) -> None:
    """List the checkpoints of a run, the newest last."""
    from toolkit.commands.checkpoint import list_checkpoints as lines

    for line in lines(run):
        typer.echo(line)


@checkpoint.command("verify")
def verify_checkpoints(run: RunFolder) -> None:
    """Check every byte of a run's checkpoints against their manifests."""
    from toolkit.commands.checkpoint import verify_checkpoints as check

    good, problems = check(run)
    for line in good:
        typer.echo(line)
    for line in problems:
        typer.echo(line, err=True)
    raise typer.Exit(UntrustedError.exit_code if problems else 0)


@checkpoint.command()
def export(
    run: RunFolder,
    out: Annotated[
        Path | None, typer.Option(help="Folder to write to.", show_default="RUN/export")
    ] = None,
    step: Annotated[
        int | None, typer.Option(help="Which checkpoint.", show_default="the newest good one")
    ] = None,
) -> None:
    """Write the weights as one safetensors file, beside it what transformers needs to use them."""
    from toolkit.commands.checkpoint import export_checkpoint

    exported = export_checkpoint(run, out, step=step)
    typer.echo(exported.weights)
    typer.echo(f"beside it {', '.join(exported.beside)}", err=True)
    for remark in exported.remarks:
        typer.echo(remark, err=True)


@checkpoint.command("import")
def import_weights(
    weights: Annotated[Path, typer.Argument(metavar="WEIGHTS", show_default=False)],
    config: Annotated[Path, typer.Option(help="The run configuration.", metavar="RUN.yaml")],
    overrides: Overrides = None,
    trust_checkpoint: Annotated[
        bool, typer.Option("--trust-checkpoint", help="Read a pickle, though it may be hostile.")
    ] = False,
    crop: Annotated[
        bool, typer.Option("--crop", help="Leave out positions beyond model.block_size.")
    ] = False,
) -> None:
    """Let a run start from GPT-2 weights in transformers' layout."""
    from toolkit.commands.checkpoint import import_weights as run

    typer.echo(run(weights, config, overrides or [], trust=trust_checkpoint, crop=crop))


def main() -> None:
    """Run the command; an error a person can cause is one sentence and an exit code."""
    try:
        with checked_stdout():
            app(expand_words(sys.argv[1:]))
    except ReaderGone as error:
        sys.exit(error.exit_code)
    except ToolkitError as error:
        typer.echo(f"error: {error}", err=True)
        sys.exit(error.exit_code)


if __name__ == "__main__":
    main()
