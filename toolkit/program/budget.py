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

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Literal

from toolkit.engines.mixture import ROOT, Budget, Mixture, Unit, in_order
from toolkit.engines.reduction import reduction_of, sum_width
from toolkit.program.events import Program
from toolkit.program.fsdp2 import Fsdp2Walk
from toolkit.program.fsdp2_unit import UnitSizes
from toolkit.program.settings import StepSettings


@dataclass(frozen=True)
class Purchase:
    """One thing that memory buys, with bytes held and bytes not sent per step."""

    key: Literal["keep", "hold"]
    unit: Unit
    costs: int
    saves: int


def spend(settings: StepSettings, budget: Budget) -> Mixture:
    """Return the mixture that a budget buys, the most saved per byte first.

    Args:
        settings: of a step of FSDP2; its own accumulation does not count.
        budget: bytes of one rank beyond what `sharded` takes.
    """
    bought: dict[str, list[Unit]] = defaultdict(list)
    left = budget.bytes
    for purchase in sorted(purchases(settings), key=lambda one: -round(one.saves / one.costs, 2)):
        if purchase.costs <= left:
            bought[purchase.key].append(purchase.unit)
            left -= purchase.costs
    return Mixture(hold=in_order(bought["hold"]), keep=in_order(bought["keep"]))


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
    sent, sent_once = (2 if one else width for one in (unit.exchanges, held == "bf16-fp32sum"))
    saved = (settings.grad_accum_steps * sent - sent_once) * unit.gathered
    # Where one rank has it all, a whole gradient is its slice.
    costs = max(1, width * unit.elements - 4 * unit.shard)
    return Purchase("hold", name, costs, saved if settings.shards > 1 else 0)
