"""Collectives in numbers: counted on a running program, or read off the program of a step."""

from dataclasses import dataclass
from typing import Literal, NamedTuple, get_args

EngineKind = Literal["all_reduce", "reduce_scatter", "all_to_all", "all_gather"]
"""What the engines use."""
REDUCING: tuple[EngineKind, ...] = ("all_reduce", "reduce_scatter", "all_to_all")
"""What gradients are reduced by."""
Kind = Literal[EngineKind, "other"]
KINDS: tuple[Kind, ...] = get_args(Kind)


@dataclass(frozen=True)
class Traffic:
    """Collectives of one kind in one optimizer step of one rank.

    Attributes:
        bytes: of their payloads together: the whole tensors that the rank takes part in.
        group_sizes: ranks in their groups, each size once, growing.
    """

    calls: int
    bytes: int
    group_sizes: tuple[int, ...] = ()


class Reductions(NamedTuple):
    """What reduces gradients before the window's last micro-step, and in it.

    Attributes:
        earlier, at_boundary: kinds of collective.
        earlier_bytes: their payload before the last micro-step; None where it is not known, as of a
            model that no program describes.
    """

    earlier: frozenset[Kind]
    at_boundary: frozenset[Kind]
    earlier_bytes: int | None
