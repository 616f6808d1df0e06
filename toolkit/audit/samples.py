"""A few elements of every gradient: this rank's own before any reduction, and what is applied.

Ranks are compared by the elements in their files, so that the script's process groups are left
alone. Elements are numbered in the whole parameter, wherever its parts are.
"""

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from torch import nn

from toolkit.audit.models import deepspeed_engine, flats_of, parameters_of, whole_parameters
from toolkit.audit.torch_internals import Flat, start_of_shard

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
        flats = {id(flat.parameter): flat for flat in flats_of(roots)}
        self._parameters = _sampled(roots)
        self._starts = {key: flat.start for key, flat in flats.items()}
        share = max(1, min(MOST_PER_PARAMETER, ELEMENTS // max(1, len(self._parameters))))
        self._picks = [_Picks(_size(parameter, flats), share) for parameter in self._parameters]
        leaves = {id(part): whole for part, whole in whole_parameters(roots)}
        reached = [leaves.get(id(parameter), parameter) for parameter in self._parameters]

        def aliases(parameter: nn.Parameter) -> set[int]:
            made_of = flats[id(parameter)].originals if id(parameter) in flats else []
            return {id(parameter), *(id(original) for _, original, _ in made_of)}

        sizes = [picks.count for picks in self._picks]
        # One buffer for all: small tensors, made among a backward's large ones, would cut up the
        # heap, and to free them costs more than to fill them.
        self._own = torch.zeros(sum(sizes), device=reached[0].device if reached else None)
        self.fired: set[int] = set()
        """Ids of parameters that a backward has reached."""
        self._handles = [
            leaf.register_hook(partial(attempt, self._take, aliases(parameter), picks, place))
            for leaf, parameter, picks, place in zip(
                reached, self._parameters, self._picks, self._own.split(sizes), strict=True
            )
        ]

    def _take(
        self, names: set[int], picks: "_Picks", place: torch.Tensor, gradient: torch.Tensor
    ) -> None:
        self.fired |= names
        if type(gradient) in (torch.Tensor, nn.Parameter) and gradient.numel() > picks.last:
            place.add_(gradient.detach().take(picks.on(gradient.device)).to(place.device))

    def take_own(self) -> torch.Tensor:
        """Return all elements of the ended micro-step, 0 where no gradient came."""
        own = self._own.clone()
        self._own.zero_()
        return own

    def applied(self) -> list[torch.Tensor | None]:
        """Return each parameter's elements of the gradient as it is, NaN where others hold it."""
        found: list[torch.Tensor | None] = []
        for (start, part), picks in zip(self._parts(), self._picks, strict=True):
            found.append(None if part is None else _pick(part, picks, start))
        return found

    def _parts(self) -> list[tuple[int, torch.Tensor | None]]:
        """Return where each parameter's gradient on this rank begins, and it, flat."""
        if engine := deepspeed_engine(self._roots):
            from toolkit.audit.deepspeed_internals import gradient_parts

            if parts := gradient_parts(engine):
                return [parts.get(id(parameter), (0, None)) for parameter in self._parameters]
        return [_held(p.grad, self._starts.get(id(p), 0)) for p in self._parameters]

    def applied_dtypes(self) -> list[str]:
        """Return the dtypes of the gradients that `applied` reads."""
        return sorted({str(part.dtype) for _, part in self._parts() if part is not None})

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
    of_root = [_reached(root) for root in roots]
    every = [parameter for own in of_root for parameter in own]
    count = min(PARAMETERS, len(every))
    even = [every[number * len(every) // count] for number in range(count)]
    first = [own[0] for own in of_root]
    return list({id(parameter): parameter for parameter in [*even, *first]}.values())


def _reached(root: nn.Module) -> list[nn.Parameter]:
    """Return the parameters that backward reaches: FSDP1's flat ones for those they are made of."""
    flat_of = {id(p): flat.parameter for flat in flats_of([root]) for _, p, _ in flat.originals}
    found = [flat_of.get(id(p), p) for _, p in parameters_of([root])]
    return list({id(parameter): parameter for parameter in found}.values())


def _size(parameter: Any, flats: dict[int, Flat]) -> int:
    """Return the elements of the whole of a parameter."""
    if flat := flats.get(id(parameter)):
        return flat.elements
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


def _held(gradient: Any, start: int) -> tuple[int, torch.Tensor | None]:
    """Return where a gradient on this rank begins, `start` if it does not know, and it, flat."""
    if gradient is None:
        return 0, None
    gradient = gradient.detach()
    if not hasattr(gradient, "placements"):
        return start, gradient.reshape(-1)
    first = start_of_shard(gradient)
    return (0, None) if first is None else (first, gradient.to_local().reshape(-1))
