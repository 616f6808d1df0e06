"""A few elements of every gradient: this rank's own before any reduction, and what is applied.

Ranks are compared by the elements in their files, so that the script's process groups are left
alone. Elements are numbered in the whole parameter, wherever its parts are.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import torch
from torch import nn

from toolkit.audit.models import deepspeed_engine, parameters_of, whole_parameters

PARAMETERS, ELEMENTS = 32, 512
"""At most so many parameters are looked at, and so many elements of all of them together."""

MOST_PER_PARAMETER = 64


class GradientSamples:
    """Hooks on the leaves of the script's models; see `take_own` and `applied`.

    Args:
        roots: the models.
        attempt: calls a function with arguments, and keeps its error from the script.
    """

    def __init__(self, roots: list[nn.Module], attempt: Callable[..., None]) -> None:
        self._roots = roots
        self._parameters = _sampled(roots)
        share = max(1, min(MOST_PER_PARAMETER, ELEMENTS // max(1, len(self._parameters))))
        self._picks = [_Picks(_size(parameter), share) for parameter in self._parameters]
        leaves = {id(part): whole for part, whole in whole_parameters(roots)}
        reached = [leaves.get(id(parameter), parameter) for parameter in self._parameters]
        sizes = [picks.count for picks in self._picks]
        # One buffer for all: small tensors, made among a backward's large ones, would cut up the
        # heap, and to free them costs more than to fill them.
        self._own = torch.zeros(sum(sizes), device=reached[0].device if reached else None)
        self.fired: set[int] = set()
        self._handles = [
            leaf.register_hook(partial(attempt, self._take, id(parameter), picks, place))
            for leaf, parameter, picks, place in zip(
                reached, self._parameters, self._picks, self._own.split(sizes), strict=True
            )
        ]

    def _take(
        self, parameter: int, picks: "_Picks", place: torch.Tensor, gradient: torch.Tensor
    ) -> None:
        self.fired.add(parameter)
        if type(gradient) in (torch.Tensor, nn.Parameter) and gradient.numel() > picks.last:
            place.add_(gradient.detach().take(picks.on(gradient.device)).to(place.device))

    def take_own(self) -> torch.Tensor:
        """Return all elements of the ended micro-step, 0 where no gradient came."""
        own = self._own.clone()
        self._own.zero_()
        return own

    def applied(self) -> list[torch.Tensor | None]:
        """Return each parameter's elements of the gradient as it is, NaN where others hold it."""
        parts = _deepspeed_parts(deepspeed_engine(self._roots))
        found: list[torch.Tensor | None] = []
        for parameter, picks in zip(self._parameters, self._picks, strict=True):
            start, part = (parts.get(id(parameter)) if parts else _held(parameter)) or (0, None)
            found.append(None if part is None else _pick(part, picks, start))
        return found

    def applied_dtypes(self) -> list[str]:
        """Return the dtypes of the gradients that `applied` reads."""
        parts = _deepspeed_parts(deepspeed_engine(self._roots))
        held = [part for _, part in parts.values()]
        own = [_held(parameter)[1] for parameter in self._parameters] if not parts else []
        return sorted({str(part.dtype) for part in [*held, *own] if part is not None})

    def flat(self, elements: Sequence[torch.Tensor | None]) -> list[float | None]:
        """Return plain numbers of all parameters, None for what is not here."""
        numbers: list[float | None] = []
        for picks, found in zip(self._picks, elements, strict=True):
            values = [math.nan] * picks.count if found is None else found.tolist()
            numbers += [value if math.isfinite(value) else None for value in values]
        return numbers

    def remove(self) -> None:
        """Take the hooks off again."""
        for handle in self._handles:
            handle.remove()


def _sampled(roots: list[nn.Module]) -> list[nn.Parameter]:
    """Return parameters evenly over all, and the first of every root, so that none is missed."""
    every = [parameter for _, parameter in parameters_of(roots)]
    count = min(PARAMETERS, len(every))
    even = [every[number * len(every) // count] for number in range(count)]
    first = [next(parameters_of([root]))[1] for root in roots]
    return list({id(parameter): parameter for parameter in [*even, *first]}.values())


def _size(parameter: Any) -> int:
    return int(getattr(parameter, "ds_numel", parameter.numel()))


class _Picks:
    """The elements of a parameter that are looked at: evenly over it."""

    def __init__(self, size: int, count: int) -> None:
        self.count = min(count, size)
        places = [(2 * number + 1) * size // (2 * self.count) for number in range(self.count)]
        self.last = places[-1]
        self._on = {torch.device("cpu"): torch.tensor(places)}

    def on(self, device: torch.device) -> torch.Tensor:
        """Return their numbers on a device, copied there once."""
        if device not in self._on:
            self._on[device] = self._on[torch.device("cpu")].to(device)
        return self._on[device]


def _pick(part: torch.Tensor, picks: _Picks, start: int) -> torch.Tensor:
    """Return the picked elements of a flat part that begins at `start` of its parameter."""
    if not part.numel():
        return torch.full((picks.count,), math.nan)
    places = picks.on(part.device) - start
    nearest = places.clamp(0, part.numel() - 1)
    return part[nearest].float().where(places == nearest, math.nan)


def _held(parameter: Any) -> tuple[int, torch.Tensor | None]:
    """Return where a parameter's gradient on this rank begins, and it, flat."""
    gradient = parameter.grad
    if gradient is None:
        return 0, None
    gradient = gradient.detach()
    if not hasattr(gradient, "placements"):
        return 0, gradient.reshape(-1)
    from torch.distributed.tensor._utils import compute_local_shape_and_global_offset

    _, offset = compute_local_shape_and_global_offset(
        gradient.shape, gradient.device_mesh, gradient.placements
    )
    if any(offset[1:]):
        return 0, None
    row = math.prod(gradient.shape[1:])
    return (offset[0] * row if offset else 0), gradient.to_local().reshape(-1)


def _deepspeed_parts(engine: Any) -> dict[int, tuple[int, torch.Tensor]]:
    """Return each parameter's part of the gradient that DeepSpeed hands its inner optimizer."""
    if engine is None:
        return {}
    from toolkit.engines.deepspeed_internals import OPTIMIZERS, PARTITIONED

    if (kind := type(engine.optimizer).__name__) not in OPTIMIZERS:
        return {}
    parts = _stage_3_parts if kind == PARTITIONED else _flat_parts
    return {key: (start, part) for key, start, part in parts(engine.optimizer)}


def _flat_parts(optimizer: Any) -> Iterator[tuple[int, int, torch.Tensor]]:
    from toolkit.engines.deepspeed_internals import compute_parameters, masters

    for parameter in compute_parameters(optimizer):
        if (mapping := parameter._hp_mapping) is None:  # type: ignore[attr-defined]
            continue
        here, there = mapping.lp_fragment_address, mapping.hp_fragment_address
        own = mapping.get_hp_fragment().untyped_storage().data_ptr()
        for master in masters(optimizer):
            if master.grad is not None and master.untyped_storage().data_ptr() == own:
                part = master.grad.detach().view(-1)[there.start : there.start + there.numel]
                yield id(parameter), here.start, part


def _stage_3_parts(optimizer: Any) -> Iterator[tuple[int, int, torch.Tensor]]:
    from torch.distributed import get_rank

    from toolkit.engines.deepspeed_internals import masters

    for group, master in zip(optimizer.fp16_groups, masters(optimizer), strict=True):
        place = 0
        for parameter in group:
            size = parameter.ds_tensor.numel()
            if master.grad is not None:
                part = master.grad.detach().view(-1)[place : place + size]
                yield id(parameter), get_rank() * size, part
            place += size
