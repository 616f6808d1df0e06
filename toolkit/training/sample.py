"""Text from the model as it is, to look at."""

from collections.abc import Callable

import torch

from toolkit.engines.engine import Engine
from toolkit.model.sizes import GPT2_VOCAB_SIZE

TOP_K = 50


def sample_tokens(
    engine: Engine,
    look: Callable[[], None] = lambda: None,
    *,
    start: int,
    length: int,
    block_size: int,
    seed: int,
) -> list[int]:
    """Sample `length` tokens after `start`, from the `TOP_K` likeliest at each place.

    Rows of the vocabulary that only pad it are never chosen. Every rank must call this and does the
    same work: under sharded parameters each forward pass is a collective. `look` is called after
    each token; what it raises ends the text.
    """
    generator = torch.Generator(device=engine.device).manual_seed(seed)
    tokens = torch.tensor([[start]], device=engine.device)
    with engine.evaluating():
        for _ in range(length):
            logits = engine.model(tokens[:, -block_size:])[0, -1, :GPT2_VOCAB_SIZE].float()
            top = logits.topk(min(TOP_K, len(logits)))
            choice = torch.multinomial(top.values.softmax(dim=-1), 1, generator=generator)
            tokens = torch.cat([tokens, top.indices[choice].view(1, 1)], dim=1)
            look()
    return tokens[0, 1:].tolist()
