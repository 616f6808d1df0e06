"""Accumulation decided unit by unit: any point between the modes.

A unit is what FSDP2 gathers and reduces together: each block, by its number, and the root, which
is the embeddings, the tied head and the last norm. Pure: imports no torch.
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass, fields
from itertools import combinations
from typing import Any, Literal

from toolkit.engines.strategies import (
    FSDP2_STRATEGIES,
    Accumulation,
    Strategy,
    check_accumulation,
)
from toolkit.errors import UsageError

Root = Literal["root"]
ROOT: Root = "root"
Unit = int | Root
_BYTES = {"KiB": 2**10, "MiB": 2**20, "GiB": 2**30}
_SIZE = re.compile(r"(\d{1,9}(?:\.\d{1,9})?) ?([KMG]iB)")


@dataclass(frozen=True)
class Mixture:
    """What each unit does in the micro-steps before a window's last; units not named are `sharded`.

    Attributes:
        hold: units that keep their whole gradients and reduce them once, as `replicated` does.
        defer: under hybrid sharding, units whose all-reduce waits for the last micro-step.
        keep: units whose parameters are gathered once per window and stay.
    """

    hold: tuple[Unit, ...] = ()
    defer: tuple[Unit, ...] = ()
    keep: tuple[Unit, ...] = ()

    def __str__(self) -> str:
        parts = (f"{key} {', '.join(map(str, units))}" for key, units in self.to_config().items())
        return "; ".join(parts) or "hold nothing"

    def to_config(self) -> dict[str, list[Unit]]:
        """Return it as in a run configuration; `hold` is there where nothing else is."""
        given = {field.name: list(getattr(self, field.name)) for field in fields(self)}
        return {key: units for key, units in given.items() if units} or {"hold": []}


@dataclass(frozen=True)
class Budget:
    """Memory of one rank.

    Attributes:
        bytes: beyond what `sharded` takes; None: what the device has.
        text: how it was written.
    """

    bytes: int | None
    text: str

    def __str__(self) -> str:
        return self.text if self.bytes is None else f"hold {self.text}"

    def to_config(self) -> str | dict[str, str]:
        """Return it as in a run configuration."""
        return self.text if self.bytes is None else {"hold": self.text}


AUTO = Budget(None, "auto")
"""What takes least time of all that fits, under every strategy."""


def to_config(accumulation: Accumulation | Mixture | Budget) -> Any:
    """Return it as in a run configuration."""
    return accumulation if isinstance(accumulation, str) else accumulation.to_config()


def read_mixture(value: dict[Any, Any]) -> Mixture | Budget:
    """Return the mixture, or the budget for one, that a configuration's mapping asks for.

    Raises:
        UsageError: names the key and what it takes.
    """
    keys = [field.name for field in fields(Mixture)]
    if list(value) == ["hold"] and isinstance(value["hold"], str):
        return _read_budget(value["hold"])
    for key, units in value.items():
        if key not in keys:
            raise UsageError(f"accumulation has the keys {', '.join(keys)}, got {str(key)[:60]!r}")
        if not isinstance(units, list | tuple) or not all(map(_is_unit, units)):
            raise UsageError(
                f"accumulation.{key} must be a list of block numbers and 'root', got {units!r}"
            )
        if len(set(units)) < len(units):
            raise UsageError(f"accumulation.{key} names a unit twice: {', '.join(map(str, units))}")
    if not value:
        raise UsageError(f"accumulation must have one of {', '.join(keys)}, got nothing in it")
    mixture = Mixture(**{key: in_order(units) for key, units in value.items()})
    if both := set(mixture.hold) & set(mixture.defer):
        raise UsageError(
            f"accumulation holds and defers {', '.join(map(str, in_order(both)))}: choose one"
        )
    return mixture


def _read_budget(text: str) -> Budget:
    found = _SIZE.fullmatch(text.strip())
    if found is None:
        raise UsageError(f"accumulation.hold must be units or a size such as 4GiB, got {text!r}")
    return Budget(round(float(found[1]) * _BYTES[found[2]]), text.strip())


def _is_unit(unit: Any) -> bool:
    return unit == ROOT or (type(unit) is int and unit >= 0)


def in_order(units: Iterable[Unit]) -> tuple[Unit, ...]:
    """Return units with the root first, then the blocks from the input on."""
    return tuple(sorted(units, key=lambda unit: -1 if unit == ROOT else unit))


def covering_mixtures(strategy: Strategy, blocks: int) -> list[Mixture]:
    """Return mixtures that together show each thing a unit can do beside units that do not.

    Of up to two blocks under FSDP2 every set of held units between the modes is there.
    """
    if strategy not in FSDP2_STRATEGIES:
        return []
    units: tuple[Unit, ...] = (ROOT, *range(blocks))
    if strategy == "hsdp":
        held, deferred = units[::3], units[1::3]
        return [Mixture(hold=held, defer=deferred), Mixture(hold=(ROOT,), keep=units)]
    sizes = range(1, len(units)) if blocks <= 2 else (1, len(units) - 1)
    return [
        *(Mixture(hold=held) for size in sizes for held in combinations(units, size)),
        Mixture(keep=units),
        Mixture(hold=(ROOT,), keep=(ROOT, 0)),
    ]


def check_possible(strategy: Strategy, accumulation: Accumulation | Mixture | Budget) -> None:
    """Refuse what a strategy cannot do.

    Raises:
        UsageError: names the strategy, what was asked and the reason.
    """
    if isinstance(accumulation, str):
        check_accumulation(strategy, accumulation)
    elif strategy not in FSDP2_STRATEGIES and accumulation != AUTO:
        raise UsageError(
            f"accumulation by units ({accumulation}) is impossible with strategy '{strategy}': "
            f"only FSDP2 decides unit by unit; possible with {', '.join(FSDP2_STRATEGIES)}"
        )
    elif isinstance(accumulation, Mixture) and accumulation.defer and strategy != "hsdp":
        raise UsageError(
            f"accumulation.defer is impossible with strategy '{strategy}': only hybrid sharding "
            "has an all-reduce that can wait"
        )


def check_units(accumulation: Accumulation | Mixture | Budget, blocks: int) -> None:
    """Refuse a mixture that names a block which the model does not have.

    Raises:
        UsageError: names the block and the last one there is.
    """
    if isinstance(accumulation, Mixture):
        for unit in (*accumulation.hold, *accumulation.defer, *accumulation.keep):
            if unit != ROOT and unit >= blocks:
                raise UsageError(
                    f"accumulation names block {unit}, but the model's last is {blocks - 1}"
                )


def mode_of(accumulation: Accumulation | Mixture, unit: Unit) -> Accumulation:
    """Return how one unit accumulates."""
    if not isinstance(accumulation, Mixture):
        return accumulation
    if unit in accumulation.hold:
        return "replicated"
    return "deferred" if unit in accumulation.defer else "sharded"


def stays_gathered(strategy: Strategy, accumulation: Accumulation | Mixture, unit: Unit) -> bool:
    """Whether a unit's parameters are gathered once per window.

    Of the modes only `replicated` without resharding does so: whole gradients are held anyway.
    """
    if isinstance(accumulation, Mixture):
        return unit in accumulation.keep
    return (strategy, accumulation) == ("fsdp2_no_reshard", "replicated")
