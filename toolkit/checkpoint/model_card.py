"""The model card of an export: what the model is, how it was trained, how to use it."""

from collections.abc import Iterator, Mapping
from typing import Any

from toolkit.checkpoint.training_state import TrainingState
from toolkit.model.sizes import parameter_count

SIGNATURE = "Written by `toolkit checkpoint export`."
_WITH_TOKENIZER = """from transformers import pipeline

generate = pipeline("text-generation", model="path/to/this/folder")
print(generate("Once upon a time", max_length=50)[0]["generated_text"])"""
_WITHOUT = """from transformers import GPT2LMHeadModel

model = GPT2LMHeadModel.from_pretrained("path/to/this/folder")"""


def model_card(
    state: TrainingState,
    evaluation: Mapping[str, Any] | None,
    *,
    rows: int,
    without_tokenizer: str | None,
) -> str:
    """Return the text of `README.md`: Markdown after the metadata that model hubs read.

    Args:
        state: the checkpoint's.
        evaluation: the record of the run's evaluation after the same step, if there is one.
        rows: tokens of the vocabulary, without padding.
        without_tokenizer: why no tokenizer is written, or None where one is.
    """
    table = "".join(f"| {name} | {text} |\n" for name, text in _facts(state, evaluation, rows))
    reason = f"\nThere is no tokenizer: {without_tokenizer}.\n" if without_tokenizer else ""
    usage = _WITHOUT if without_tokenizer else _WITH_TOKENIZER
    return (
        "---\nlibrary_name: transformers\npipeline_tag: text-generation\n---\n\n"
        f"# {state.config['run_name']}\n\n"
        f"A GPT-2 trained with the scaling toolkit. {SIGNATURE}\n\n"
        f"| | |\n| --- | --- |\n{table}{reason}\n"
        f"```python\n{usage}\n```\n"
    )


def _facts(
    state: TrainingState, evaluation: Mapping[str, Any] | None, rows: int
) -> Iterator[tuple[str, str]]:
    config = state.config
    model, optimizer, batch = config["model"], config["optimizer"], config["batch"]
    size = parameter_count(model["n_layer"], model["n_embd"], rows, model["block_size"])
    yield "parameters", f"{size:,}"
    yield (
        "model",
        f"{model['n_layer']} blocks, {model['n_head']} heads, width {model['n_embd']}, "
        f"{model['block_size']:,} positions, vocabulary of {rows:,}",
    )
    yield "steps", f"{state.step:,} of {batch['tokens_per_step']:,} tokens"
    yield "tokens trained on", f"{state.tokens:,}"
    if state.data:
        yield "tokens in the training data", f"{state.data['tokens']:,}"
    if evaluation:
        found = f"{evaluation['loss']:.4f} nats per token over {evaluation['tokens']:,} tokens"
        yield "validation loss", found
    yield "sequence length", f"{config['data']['seq_len']:,}"
    yield (
        "optimizer",
        f"{optimizer['name']}, learning rate {optimizer['lr']:g}, weight decay "
        f"{optimizer['weight_decay']:g}",
    )
    yield "precision", config["precision"]
    yield "strategy", f"{state.strategy} on {state.world_size}"
    if state.versions:
        shown = (f"{name} {version}" for name, version in state.versions.items())
        yield "versions", ", ".join(shown)
