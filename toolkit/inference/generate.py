"""Text from a model, token by token."""

from collections.abc import Iterator
from dataclasses import dataclass

import torch

from toolkit.errors import UsageError
from toolkit.inference.trained import Trained
from toolkit.model.cache import KeyValueCache


@dataclass(frozen=True)
class Sampling:
    """How the next token is chosen from the logits.

    Attributes:
        temperature: logits are divided by it; 0 takes the likeliest token.
        top_k: only so many of the likeliest tokens are considered; None considers all.
        top_p: of those, the fewest that have this probability together (Holtzman et al. 2020,
            "The Curious Case of Neural Text Degeneration", section 3.1).
    """

    temperature: float = 1.0
    top_k: int | None = None
    top_p: float = 1.0

    def __post_init__(self) -> None:
        if self.temperature < 0:
            raise UsageError(f"--temperature must be at least 0, got {self.temperature}")
        if self.top_k is not None and self.top_k < 1:
            raise UsageError(f"--top-k must be at least 1, got {self.top_k}")
        if not 0 < self.top_p <= 1:
            raise UsageError(f"--top-p must be above 0 and at most 1, got {self.top_p}")

    def choose(self, logits: torch.Tensor, generator: torch.Generator) -> int:
        """Return one id for the logits [vocab_size]."""
        if self.temperature == 0:
            return int(logits.argmax())
        top_k = min(self.top_k or len(logits), len(logits))
        values, ids = (logits.float() / self.temperature).topk(top_k)
        probabilities = values.softmax(dim=-1)
        before = probabilities.cumsum(dim=-1) - probabilities
        probabilities[before >= self.top_p] = 0.0
        return int(ids[torch.multinomial(probabilities, 1, generator=generator)])


@torch.inference_mode()
def generate(
    trained: Trained, prompt: list[int], sampling: Sampling, *, tokens: int, seed: int
) -> Iterator[int]:
    """Yield up to `tokens` ids that follow a prompt, until one ends the document.

    Beyond the model's block size the last half of the text is read again, as if it began there.

    Args:
        trained: the model.
        prompt: ids; the end of a document where there are none, so that one begins.
        sampling: how to choose.
        tokens: at most so many.
        seed: of the choices.
    """
    generator = torch.Generator(device=trained.device).manual_seed(seed)
    block_size = trained.sizes.block_size
    end = trained.tokenizer.end_of_text
    text = list(prompt) or [min(end, trained.sizes.vocab_size - 1)]
    new = text[-block_size:]
    cache = KeyValueCache(trained.sizes, batch=1, device=trained.device)
    for _ in range(tokens):
        if cache.length + len(new) > block_size:
            cache = KeyValueCache(trained.sizes, batch=1, device=trained.device)
            new = text[-(block_size // 2 or 1) :]
        logits = trained.model.next_logits(torch.tensor([new], device=trained.device), cache)
        token = sampling.choose(logits[0, : trained.vocabulary], generator)
        if token == end:
            return
        yield token
        text.append(token)
        new = [token]
