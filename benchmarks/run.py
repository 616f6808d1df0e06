"""Measure arms given on the command line.

python -m benchmarks.run --strategies ddp,fsdp2 --grad-accum 1,4 --out benchmarks/out/first
"""

import math
from typing import Annotated

import typer

from benchmarks.axes import Axes, Sweep
from toolkit.launch.links import check_rate
from benchmarks.sweep import Out, RetryFailed, carry_out, run_app
from toolkit.engines.strategies import ACCUMULATIONS, PRECISIONS, STRATEGIES
from toolkit.errors import UsageError
from toolkit.verify.options import choices, model_sizes, numbers

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)


@app.command()
def run(
    out: Out,
    strategies: Annotated[str, typer.Option(help="Comma-separated.")] = "ddp,fsdp2",
    accumulation: Annotated[
        str, typer.Option(help="Comma-separated; pairs that cannot be are left out.")
    ] = "replicated,sharded",
    grad_accum: Annotated[str, typer.Option(help="Micro-steps, comma-separated.")] = "4",
    micro_batch_size: Annotated[
        str, typer.Option(help="Sequences per rank and micro-step, comma-separated.")
    ] = "1",
    seq_len: Annotated[
        int | None, typer.Option(help="Tokens.", show_default="the model's block_size")
    ] = None,
    world_sizes: Annotated[str, typer.Option(help="Ranks, comma-separated.")] = "2",
    model: Annotated[
        str, typer.Option(help="A preset, or n_layer,n_head,n_embd,vocab_size,block_size.")
    ] = "4,4,128,4096,128",
    precision: Annotated[str, typer.Option(help="Comma-separated.")] = "fp32",
    losses: Annotated[str, typer.Option("--loss", help="plain, chunked or both.")] = "plain",
    activation_checkpointing: Annotated[bool, typer.Option("--activation-checkpointing")] = False,
    compiled: Annotated[bool, typer.Option("--compile", help="Compile each block.")] = False,
    links: Annotated[
        str | None, typer.Option(help="Mbit/s between two ranks on one machine, comma-separated.")
    ] = None,
    data: Annotated[
        list[str] | None,
        typer.Option(help="Prepared shards, for real data.", show_default="random tokens"),
    ] = None,
    repeats: Annotated[int, typer.Option(help="Of each arm, interleaved.", min=1)] = 3,
    warm_up: Annotated[int, typer.Option(help="Steps before each repeat.", min=0)] = 1,
    steps: Annotated[int, typer.Option(help="Timed steps of each repeat.", min=1)] = 5,
    threads: Annotated[int, typer.Option(help="Of each rank.", min=1)] = 1,
    timeout: Annotated[float, typer.Option(help="Seconds for whatever one arm does.")] = 300.0,
    retry_failed: RetryFailed = False,
) -> None:
    """Measure every combination of what is given, and keep a record of each repeat."""
    sizes = model_sizes(model)
    if seq_len is not None and not 1 <= seq_len <= sizes.block_size:
        raise UsageError(f"--seq-len must be 1 to {sizes.block_size}, got {seq_len}")
    if not 0 < timeout < math.inf:
        raise UsageError(f"--timeout must be a number of seconds above 0, got {timeout:g}")
    rates = numbers("--links", links) if links else []
    for rate in rates:
        check_rate(rate)
    axes = Axes(
        strategies=tuple(choices("--strategies", strategies, STRATEGIES)),
        accumulations=tuple(choices("--accumulation", accumulation, ACCUMULATIONS)),
        grad_accum_steps=tuple(numbers("--grad-accum", grad_accum)),
        micro_batch_sizes=tuple(numbers("--micro-batch-size", micro_batch_size)),
        seq_lens=(seq_len,),
        world_sizes=tuple(numbers("--world-sizes", world_sizes)),
        models=(model,),
        precisions=tuple(choices("--precision", precision, PRECISIONS)),
        losses=tuple(choices("--loss", losses, ("plain", "chunked"))),
        activation_checkpointing=(activation_checkpointing,),
        compile=(compiled,),
        data=("real",) if data else ("synthetic",),
        links_mbit_per_s=tuple(rates) or (None,),
    )
    sweep = Sweep(
        repeats=repeats,
        warm_up_steps=warm_up,
        steps=steps,
        threads=threads,
        timeout_s=timeout,
        shards=tuple(data or ()),
        arms=(axes,),
    )
    carry_out(None, sweep, out, retry_failed=retry_failed)


if __name__ == "__main__":
    run_app(app)
