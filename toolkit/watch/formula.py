"""Where the elements of a collective come from: the closed form behind its bytes."""

from collections.abc import Iterator

from toolkit.engines.strategies import COPIES, SHARDS_ROWS
from toolkit.model.tensors import Tensor, block_tensors, model_tensors, root_tensors
from toolkit.program.fsdp2_unit import UnitSizes
from toolkit.program.settings import StepSettings
from toolkit.program.zero12 import ALIGNED_ELEMENTS

NUMBERS = 1
"""Collectives of at most so many elements carry a number, such as a norm, and no tensor."""


def explain(settings: StepSettings, kind: str, elements: int) -> str:
    """Return what so many elements of a collective are, as a formula where there is one.

    d is the model's width, V its vocabulary, T its longest sequence, L its blocks, N the ranks.
    """
    if elements <= NUMBERS:
        return "a number: targets of the step, or a norm"
    for count, text in _known(settings):
        if count == elements:
            return text
    if settings.strategy == COPIES and kind == "all_reduce":
        return "gradients in the order in which they came, until the bucket was full"
    return "tensors that the engine puts together"


def _known(settings: StepSettings) -> Iterator[tuple[int, str]]:
    """Yield counts of elements with what they are, the simplest first."""
    sizes, shards = settings.sizes, settings.shards
    units = {
        "a block: 12 d² + 13 d": block_tensors(0, sizes.n_embd),
        "embeddings and last norm: (V + T + 2) d": root_tensors(sizes),
    }
    whole = model_tensors(sizes)
    yield sizes.parameter_count, "all parameters: (V + T + 2) d + L (12 d² + 13 d)"
    for text, tensors in units.items():
        unit = UnitSizes.of(tensors, shards)
        yield unit.elements, text
        if settings.strategy in SHARDS_ROWS:
            yield unit.gathered, f"{text}, each tensor's rows padded to a multiple of {shards}"
            yield unit.shard, f"1/{shards} of {text}, padded"
    for is_matrix, name in ((True, "all matrices"), (False, "all biases and norms")):
        count = sum(tensor.elements for tensor in whole if tensor.is_matrix == is_matrix)
        yield count, name
        step = ALIGNED_ELEMENTS * settings.world_size
        yield -(-count // step) * step, f"{name}, padded to a multiple of {step}"
    yield from _tensors(whole, settings.world_size)


def _tensors(tensors: list[Tensor], ranks: int) -> Iterator[tuple[int, str]]:
    for tensor in tensors:
        text = f"{tensor.module}: {tensor.rows:,} × {tensor.columns:,}"
        yield tensor.elements, text
        yield -(-tensor.elements // ranks) * ranks, f"{text}, padded to a multiple of {ranks}"
