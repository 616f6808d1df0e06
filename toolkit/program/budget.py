"""Which units to hold and to keep for a given memory, where each byte saves most.

What is saved is counted in bytes sent, as time goes with them where communication is what a step
waits for. In A micro-steps, with p elements of a unit, p' the same padded to equal slices and s in
one slice, c bytes per element computed with, r bytes sent where each micro-step is reduced and w
where the window is:

    keep   costs c p           saves (2 A - 1) c p' of gathers, (A - 1) c p' of the root
    hold   costs w p - 4 s     saves (A r - w) p' of reductions

Of equal ones the root goes first, for its reduction is the last of each backward pass and nothing
is left to hide it behind; then block 0, and so on from the input.
"""

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from toolkit.engines.mixture import ROOT, Mixture, Unit, in_order
from toolkit.engines.reduction import exchange_width, reduction_of, sum_width
from toolkit.engines.strategies import FSDP2_STRATEGIES, Accumulation, possible_accumulations
from toolkit.program.events import Program
from toolkit.program.fsdp2 import Fsdp2Walk
from toolkit.program.fsdp2_unit import UnitSizes
from toolkit.program.readers.traffic import sent_bytes
from toolkit.program.settings import StepSettings
from toolkit.program.step import estimate_peak, write_step

Clock = Callable[[StepSettings], float]
"""The predicted seconds of a step."""


@dataclass(frozen=True)
class Purchase:
    """One thing that memory buys, with bytes held and bytes not sent per step."""

    key: Literal["keep", "hold"]
    unit: Unit
    costs: int
    saves: int


def spend(settings: StepSettings, budget: int) -> Mixture:
    """Return the mixture that a budget buys, the most saved per byte first.

    Args:
        settings: of a step of FSDP2; its own accumulation does not count.
        budget: bytes of one rank beyond what `sharded` takes.
    """
    bought: list[Purchase] = []
    for purchase in in_order_of_saving(settings, None):
        if sum(one.costs for one in bought) + purchase.costs <= budget:
            bought.append(purchase)
    return _mixture(bought, ())


def choose(
    settings: StepSettings, holds: Callable[[int], bool], clock: Clock | None = None
) -> Accumulation | Mixture:
    """Return what takes least time of all that fits; where nothing does, what holds least.

    Under FSDP2 that is as many units as fit, those first that save most for their bytes; under
    every strategy no mode that fits is faster.

    Args:
        settings: of a step; its own accumulation does not count.
        holds: whether a rank has memory for a peak of so many bytes.
        clock: without one, time goes with the bytes that are sent.
    """

    def using(accumulation: Accumulation | Mixture) -> StepSettings:
        return replace(settings, accumulation=accumulation)

    def peak(accumulation: Accumulation | Mixture) -> int:
        return estimate_peak(using(accumulation)).total

    def cost(accumulation: Accumulation | Mixture) -> float:
        step = using(accumulation)
        return clock(step) if clock else sent_bytes(write_step(step))

    candidates: list[Accumulation | Mixture] = list(possible_accumulations(settings.strategy))
    if settings.strategy in FSDP2_STRATEGIES:
        candidates.append(_fill(settings, lambda mixture: holds(peak(mixture)), clock))
    fitting = [candidate for candidate in candidates if holds(peak(candidate))]
    return min(fitting, key=cost) if fitting else min(candidates, key=peak)


def _fill(settings: StepSettings, fits: Callable[[Mixture], bool], clock: Clock | None) -> Mixture:
    """Return all that fits; what hybrid sharding does not hold it defers, which costs nothing."""
    units = (ROOT, *range(settings.sizes.n_layer)) if settings.strategy == "hsdp" else ()
    offered = in_order_of_saving(settings, clock)
    enough = bisect_left(
        range(1, len(offered) + 1), True, key=lambda n: not fits(_mixture(offered[:n], units))
    )
    bought, refused = offered[:enough], set()
    for purchase in offered[enough:]:
        # Blocks in the middle are all alike; at the ends some memory is free where the peak is.
        kind = purchase.key, _alike(settings, purchase.unit)
        if kind in refused:
            continue
        if fits(_mixture([*bought, purchase], units)):
            bought.append(purchase)
        else:
            refused.add(kind)
    return _mixture(bought, units)


def _alike(settings: StepSettings, unit: Unit) -> Unit:
    """Return the unit that stands for all like this one: block 1 for those between the ends."""
    return unit if unit in (ROOT, 0, settings.sizes.n_layer - 1) else 1


def _mixture(bought: Sequence[Purchase], units: Sequence[Unit]) -> Mixture:
    """Return what was bought; those of `units` that are not held are deferred."""
    chosen: dict[str, list[Unit]] = defaultdict(list)
    for purchase in bought:
        chosen[purchase.key].append(purchase.unit)
    deferred = [unit for unit in units if unit not in chosen["hold"]]
    return Mixture(
        hold=in_order(chosen["hold"]), defer=in_order(deferred), keep=in_order(chosen["keep"])
    )


def in_order_of_saving(settings: StepSettings, clock: Clock | None) -> list[Purchase]:
    """Return what can be bought, the most saved per byte first.

    With a clock that is the time which each saves by itself: what a GPU hides behind computation
    saves nothing, so the exposed reductions come first, of the root and of block 0. Bytes decide
    between equals. All blocks between the first and the last are taken to save what one does.
    """
    found = list(purchases(settings))
    by_bytes = sorted(found, key=lambda one: -round(one.saves / one.costs, 2))
    if clock is None:
        return by_bytes
    base = clock(replace(settings, accumulation="sharded"))
    saved: dict[tuple[str, Unit], float] = {}

    def seconds_per_byte(purchase: Purchase) -> float:
        unit = _alike(settings, purchase.unit)
        if (purchase.key, unit) not in saved:
            alone = replace(settings, accumulation=_mixture([replace(purchase, unit=unit)], ()))
            saved[purchase.key, unit] = base - clock(alone)
        return saved[purchase.key, unit] / purchase.costs

    # To a millionth of a step for each MiB, below which differences are the arithmetic's own.
    least = 1e-6 * base / 2**20
    return sorted(by_bytes, key=lambda one: -round(seconds_per_byte(one) / least))


def cost_and_saving(settings: StepSettings, mixture: Mixture) -> tuple[int, int]:
    """Return the bytes that a mixture holds beyond `sharded`, and those it does not send."""
    chosen = [p for p in purchases(settings) if p.unit in getattr(mixture, p.key)]
    return sum(p.costs for p in chosen), sum(p.saves for p in chosen)


def purchases(settings: StepSettings) -> Iterator[Purchase]:
    """Yield what can be bought and saves anything, the root first."""
    walk = Fsdp2Walk(replace(settings, accumulation="sharded"), Program())
    units: list[tuple[Unit, UnitSizes]] = [(ROOT, walk.root), *enumerate(walk.blocks)]
    for name, unit in units:
        for purchase in (_keep(settings, name, unit), _hold(settings, name, unit)):
            if purchase.saves > 0:
                yield purchase


def _keep(settings: StepSettings, name: Unit, unit: UnitSizes) -> Purchase:
    micro_steps, c = settings.grad_accum_steps, settings.width
    gathers = (2 if unit.gathers_again else 1) * micro_steps - 1
    sent = unit.gathered if settings.shards > 1 else 0
    return Purchase("keep", name, c * unit.elements, gathers * c * sent)


def _hold(settings: StepSettings, name: Unit, unit: UnitSizes) -> Purchase:
    asked = settings.reduce
    held = reduction_of(settings.strategy, settings.precision, asked, "replicated")
    width = sum_width(asked)
    sent, sent_once = unit.exchange_width or width, exchange_width(held) or width
    saved = (settings.grad_accum_steps * sent - sent_once) * unit.gathered
    # Where one rank has it all, a whole gradient is its slice.
    costs = max(1, width * unit.elements - 4 * unit.shard)
    return Purchase("hold", name, costs, saved if settings.shards > 1 else 0)
