"""The repeated blocks of any model: what is sharded one by one, and how large they are."""

from collections.abc import Sequence
from dataclasses import dataclass

from torch import nn


@dataclass(frozen=True)
class MeasuredSizes:
    """Elements of a model that its engine's buckets follow; `ModelSizes` has them of a GPT-2.

    Attributes:
        parameter_count: of all parameters, a tied one once.
        block_parameters: of the largest block; of the whole model where it has none.
        largest_vector: of the largest parameter with fewer than two dimensions.
    """

    parameter_count: int
    block_parameters: int
    largest_vector: int


def sizes_of(model: nn.Module, blocks: Sequence[nn.Module]) -> MeasuredSizes:
    """Count a model that is not wrapped yet."""
    vectors = [p.numel() for p in model.parameters() if p.dim() < 2]
    return MeasuredSizes(
        parameter_count=_count(model),
        block_parameters=max(map(_count, blocks), default=_count(model)),
        largest_vector=max(vectors, default=0),
    )


def _count(module: nn.Module) -> int:
    return sum(parameter.numel() for parameter in module.parameters())


def blocks_of(model: nn.Module, classes: Sequence[type[nn.Module]] = ()) -> list[nn.Module]:
    """Return the modules of the given classes, or else the members of every list of blocks.

    A list of blocks is an outermost `nn.ModuleList` whose members have one class and modules of
    their own, as the layers of a transformer have.
    """
    if classes:
        return [module for module in model.modules() if isinstance(module, tuple(classes))]
    if isinstance(model, nn.ModuleList) and _is_of_blocks(model):
        return list(model)
    return [block for child in model.children() for block in blocks_of(child)]


def _is_of_blocks(modules: nn.ModuleList) -> bool:
    one_class = len({type(module) for module in modules}) == 1
    return one_class and all(list(module.children()) for module in modules)
