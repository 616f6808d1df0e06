"""What is found out about the model between steps: validation loss and a sample of text."""

from collections.abc import Iterator
from dataclasses import asdict
from typing import Any

from toolkit.data.batches import eval_batches
from toolkit.data.vocabulary import END_OF_TEXT, build_vocabulary
from toolkit.model.sizes import GPT2_VOCAB_SIZE
from toolkit.training.build import Run
from toolkit.training.evaluate import evaluate
from toolkit.training.metrics import eval_line
from toolkit.training.sample import sample_tokens


def validate(run: Run, *, step: int) -> Iterator[tuple[dict[str, Any], str]]:
    """Yield records with their console lines, as the run's configuration asks; a collective."""
    if run.val is not None:
        batches = eval_batches(
            run.val,
            micro_batch_size=run.plan.micro_batch_size,
            world_size=run.engine.world_size,
            rank=run.engine.rank,
            max_sequences=run.config.training.eval_sequences,
        )
        found = evaluate(run.engine, batches)
        record = {"kind": "eval", "step": step, **asdict(found)}
        yield record, eval_line(record, steps=run.config.training.steps)
    if run.config.training.sample_tokens:
        text = _sample(run)
        yield {"kind": "sample", "step": step, "text": text}, f"sample {step:>5} | {text!r}"


def _sample(run: Run) -> str:
    tokens = sample_tokens(
        run.engine,
        start=min(END_OF_TEXT, run.config.model.vocab_size - 1),
        length=run.config.training.sample_tokens,
        block_size=run.config.model.block_size,
        seed=run.config.seed,
    )
    return build_vocabulary().decode([token for token in tokens if token < GPT2_VOCAB_SIZE])
