"""Weights that two modules share: found before a model is wrapped, shared again after it.

Engines that replace parameters do so name by name, and leave a shared one as two (FSDP2 under
Accelerate 1.16); the optimizer then updates the first of them alone.
"""

from collections import defaultdict
from collections.abc import Sequence

from torch import nn

from toolkit.errors import UsageError


def tied_names(model: nn.Module) -> list[tuple[str, ...]]:
    """Return the names of each parameter that has several, in the model's order."""
    names: dict[int, list[str]] = defaultdict(list)
    for name, parameter in model.named_parameters(remove_duplicate=False):
        names[id(parameter)].append(name)
    return [tuple(group) for group in names.values() if len(group) > 1]


def tie_again(model: nn.Module, ties: Sequence[tuple[str, ...]]) -> None:
    """Give every name of a tie the parameter that its first name has."""
    for first, *others in ties:
        shared = model.get_parameter(first)
        for name in others:
            owner, _, attribute = name.rpartition(".")
            setattr(model.get_submodule(owner), attribute, shared)


def check_ties(
    model: nn.Module, ties: Sequence[tuple[str, ...]], blocks: Sequence[nn.Module]
) -> None:
    """Refuse a weight that blocks share: each block's are gathered and freed on their own.

    Raises:
        UsageError: names the tie.
    """
    inside = {id(module): id(block) for block in blocks for module in block.modules()}
    for tie in ties:
        owners = (model.get_submodule(name.rpartition(".")[0]) for name in tie)
        if len({inside.get(id(owner)) for owner in owners}) > 1:
            raise UsageError(
                f"{' and '.join(tie)} are one weight in modules that are sharded apart; "
                "untie them, or give build_engine block_classes that hold both"
            )
