"""Options of `toolkit verify`: lists, and a model by name or numbers."""

from collections.abc import Sequence
from difflib import get_close_matches
from typing import TypeVar, cast

from toolkit.errors import UsageError
from toolkit.model.sizes import PRESETS, ModelSizes, preset_sizes

Name = TypeVar("Name", bound=str)


def choices(option: str, text: str, allowed: Sequence[Name]) -> list[Name]:
    """Return the names of a comma-separated list.

    Raises:
        UsageError: a name is not among the allowed ones.
    """
    words = [word.strip() for word in text.split(",") if word.strip()]
    for word in words:
        if word not in allowed:
            near = get_close_matches(word, allowed, n=1)
            hint = f"did you mean '{near[0]}'?" if near else f"there are {', '.join(allowed)}"
            raise UsageError(f"{option}: unknown '{word}'; {hint}")
    if not words:
        raise UsageError(f"{option} is empty; there are {', '.join(allowed)}")
    return cast("list[Name]", words)


def numbers(option: str, text: str) -> list[int]:
    """Return the whole numbers, from 1, of a comma-separated list.

    Raises:
        UsageError: something else is among them.
    """
    words = [word.strip() for word in text.split(",")]
    if not all(word.isascii() and word.isdigit() and int(word) for word in words):
        raise UsageError(f"{option} must be whole numbers such as 1,2,4, got '{text}'")
    return [int(word) for word in words]


def model_sizes(text: str) -> ModelSizes:
    """Return a preset's sizes, or those given as five numbers.

    Raises:
        UsageError: it is neither, or the heads do not divide the width.
    """
    if text in PRESETS:
        return preset_sizes(text)
    if text.count(",") != 4:
        raise UsageError(
            f"--model must be {', '.join(PRESETS)}, or n_layer,n_head,n_embd,vocab_size,block_size"
            f" as five numbers, got '{text}'"
        )
    n_layer, n_head, n_embd, vocab_size, block_size = numbers("--model", text)
    if n_embd % n_head:
        raise UsageError(f"--model: n_embd {n_embd} is no multiple of n_head {n_head}")
    return ModelSizes(n_layer, n_head, n_embd, vocab_size, block_size)
