"""Collectives in numbers: counted on a running program, or read off the program of a step."""

from dataclasses import dataclass
from typing import Literal, NamedTuple, get_args

EngineKind = Literal["all_reduce", "reduce_scatter", "all_gather"]
"""What the engines use."""
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
    """Kinds of collective that reduce gradients before the window's last micro-step, and in it."""

    earlier: frozenset[Kind]
    at_boundary: frozenset[Kind]
