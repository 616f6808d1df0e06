"""Collectives of a running program: kind, calls and payload, whoever issues them.

Read from PyTorch's profiler, which sees what DDP's reducer and DeepSpeed call as well as what
Python calls. A payload is the whole tensor a rank takes part in: what is reduced, what is scattered
before it is, what is gathered once it is.
"""

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Literal

import torch
from torch.profiler import ProfilerActivity, profile

Kind = Literal["all_reduce", "reduce_scatter", "all_gather"]
KINDS: tuple[Kind, ...] = ("all_reduce", "reduce_scatter", "all_gather")

_BYTES = {
    "float": 4,
    "double": 8,
    "long int": 8,
    "int": 4,
    "c10::BFloat16": 2,
    "c10::Half": 2,
    "unsigned char": 1,
    "bool": 1,
}


@dataclass(frozen=True)
class Traffic:
    """Calls of one kind and the bytes of their payloads together."""

    calls: int
    bytes: int


@dataclass
class Collectives:
    """What `count_collectives` saw, filled in when its block ends.

    Attributes:
        payloads: how often each (kind, elements, bytes per element) occurred.
    """

    payloads: Counter[tuple[Kind, int, int]] = field(default_factory=Counter)

    def traffic(self, kind: Kind, *, above: int = 0) -> Traffic:
        """Return calls and bytes of one kind.

        Args:
            kind: which.
            above: payloads of at most this many elements are left out, such as a loss or a norm.
        """
        found = {
            payload: count
            for payload, count in self.payloads.items()
            if payload[0] == kind and payload[1] > above
        }
        return Traffic(
            calls=sum(found.values()),
            bytes=sum(count * size * width for (_, size, width), count in found.items()),
        )


@contextmanager
def count_collectives() -> Iterator[Collectives]:
    """Count the collectives that this process issues inside the block."""
    counted = Collectives()
    with profile(activities=[ProfilerActivity.CPU], record_shapes=True) as recorded:
        yield counted
    assert recorded.profiler is not None
    events = recorded.profiler.kineto_results.events()
    for event in events:
        if event.name() == "c10d::_reduce_scatter_base_":
            counted.payloads["reduce_scatter", _elements(event.shapes()[1]), _width(event, 1)] += 1
        elif event.name() == "c10d::_allgather_base_":
            counted.payloads["all_gather", _elements(event.shapes()[0]), _width(event, 0)] += 1
        elif event.name() in ("gloo:all_reduce", "nccl:all_reduce"):
            # The call itself takes a list, whose sizes the profiler does not record.
            counted.payloads["all_reduce", _elements(event.shapes()[0]), _width(event, 0)] += 1
    if any(event.name().startswith("gloo:") for event in events):
        _leave_out_scattered(counted.payloads)


def _leave_out_scattered(payloads: Counter[tuple[Kind, int, int]]) -> None:
    """Gloo scatters by an all-reduce of the same payload, which is one call and not two."""
    for (kind, elements, width), count in list(payloads.items()):
        if kind == "reduce_scatter":
            payloads["all_reduce", elements, width] -= count


def _elements(shape: list[int]) -> int:
    return int(torch.Size(shape).numel())


def _width(event: object, position: int) -> int:
    name = event.dtypes()[position]  # type: ignore[attr-defined]
    return _BYTES[name]
