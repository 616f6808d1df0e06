"""`toolkit generate`: text from a trained model."""

import sys
from typing import Annotated

import typer

from toolkit.commands.options import Tokenizer, TrainedModel
from toolkit.errors import UsageError


def generate(
    run: TrainedModel,
    prompt: Annotated[
        str, typer.Option(help="Text to continue; - reads standard input.", metavar="TEXT|-")
    ] = "",
    tokens: Annotated[int, typer.Option(help="At most so many.", min=1)] = 200,
    temperature: Annotated[float, typer.Option(help="0 always takes the likeliest token.")] = 0.8,
    top_k: Annotated[
        int | None, typer.Option(help="Choose among the likeliest.", show_default="all")
    ] = None,
    top_p: Annotated[
        float, typer.Option(help="Choose among the fewest with this probability together.")
    ] = 1.0,
    seed: Annotated[int, typer.Option(help="Of the choices.", min=0)] = 1337,
    samples: Annotated[int, typer.Option(help="Texts, one after another.", min=1)] = 1,
    stop: Annotated[str | None, typer.Option(help="End before this text.", metavar="TEXT")] = None,
    step: Annotated[
        int | None, typer.Option(help="Which checkpoint.", show_default="the newest good one")
    ] = None,
    tokenizer: Tokenizer = None,
) -> None:
    """Continue a text, written out as it comes.

    Example: toolkit generate runs/demo --prompt "To be, or" --tokens 100 --top-k 50
    """
    from toolkit.inference.generate import Sampling
    from toolkit.inference.generate import generate as next_tokens
    from toolkit.inference.source import find_source
    from toolkit.inference.text import stream_text
    from toolkit.inference.trained import default_device, read_trained

    sampling = Sampling(temperature, top_k, top_p)
    text = _read_prompt(prompt)
    trained = read_trained(
        find_source(run, step=step), device=default_device(), tokenizer=tokenizer
    )
    ids = trained.encode(text)
    for number in range(samples):
        found = next_tokens(trained, ids, sampling, tokens=tokens, seed=seed + number)
        typer.echo(text, nl=False)
        for piece in stream_text(found, trained.tokenizer, stop=stop):
            typer.echo(piece, nl=False)
            sys.stdout.flush()
        typer.echo("\n---" if number + 1 < samples else "")


def _read_prompt(prompt: str) -> str:
    if prompt != "-":
        return prompt
    try:
        return sys.stdin.buffer.read().decode()
    except UnicodeDecodeError:
        raise UsageError("--prompt -: standard input is not UTF-8 text") from None
