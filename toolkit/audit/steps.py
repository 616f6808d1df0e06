"""The ranks' reports of one step, joined: micro-steps, mode, traffic, division."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from toolkit.audit.division import describe_division, fit_factors
from toolkit.audit.weighting import describe_weighting

_EQUAL = 0.9
"""A micro-step that reduces at least this share of the last one's bytes reduces all gradients."""


@dataclass(frozen=True)
class Step:
    """One optimizer step of all ranks.

    Attributes:
        mode: replicated, sharded, deferred, mixed, or None with one micro-step or one rank.
        asked: replicated where the script asks to hold gradients back, else None.
        asked_line: where it does.
        collectives: of rank 0, calls and bytes by kind.
        phases: the same by phase.
        reduced_bytes: of gradients, by each micro-step of rank 0.
        division: see `division.describe_division`.
        weighting: see `weighting.describe_weighting`.
    """

    micro_steps: int
    reducing_micro_steps: int
    mode: str | None
    asked: str | None
    asked_line: str | None
    collectives: dict[str, dict[str, int]]
    phases: dict[str, dict[str, dict[str, Any]]]
    held_gradient_bytes: int
    reduced_bytes: tuple[int, ...]
    division: str
    weighting: str
    backward_line: str | None
    step_line: str | None

    def to_json(self) -> dict[str, Any]:
        """Return the keys that scripts outside rely on, and a few more."""
        return {
            "micro_steps": self.micro_steps,
            "reducing_micro_steps": self.reducing_micro_steps,
            "mode": self.mode,
            "asked": self.asked,
            "collectives": self.collectives,
            "collectives_by_phase": self.phases,
            "held_gradient_bytes": self.held_gradient_bytes,
            "reduced_bytes": list(self.reduced_bytes),
            "gradients": self.division,
            "loss_weighted": self.weighting,
        }


def join_steps(ranks: Sequence[dict[str, Any]]) -> list[Step]:
    """Return the steps that every rank has seen."""
    return [_join(steps, ranks) for steps in zip(*(rank["steps"] for rank in ranks), strict=False)]


def _join(steps: tuple[dict[str, Any], ...], ranks: Sequence[dict[str, Any]]) -> Step:
    first = steps[0]
    micro_steps = first["micro_steps"]
    reduced = [micro_step["reduced"] for micro_step in micro_steps]
    asks = [m for m in micro_steps[:-1] if m["asked"] or m["holding_line"]]
    collectives: dict[str, dict[str, int]] = {}
    for kinds in first["traffic"].values():
        for kind, found in kinds.items():
            total = collectives.setdefault(kind, {"calls": 0, "bytes": 0})
            total["calls"] += found["calls"]
            total["bytes"] += found["bytes"]
    return Step(
        micro_steps=len(micro_steps),
        reducing_micro_steps=sum(bool(found) for found in reduced),
        mode=_mode(reduced),
        asked="replicated" if asks else None,
        asked_line=asks[0]["holding_line"] if asks else None,
        collectives=collectives,
        phases=first["traffic"],
        held_gradient_bytes=max(m["held_bytes"] or 0 for s in steps for m in s["micro_steps"]),
        reduced_bytes=tuple(sum(found.values()) for found in reduced),
        division=_division(steps, ranks),
        weighting=describe_weighting([m["loss"] for s in steps for m in s["micro_steps"]]),
        backward_line=micro_steps[-1]["line"],
        step_line=first["step_line"],
    )


def _mode(reduced: list[dict[str, int]]) -> str | None:
    """Return the mode in force; what is reduced before the last micro-step decides."""
    if len(reduced) == 1 or not any(reduced):
        return None
    last = sum(reduced[-1].values())
    earlier = [sum(found.values()) for found in reduced[:-1]]
    if not any(earlier):
        return "replicated"
    is_hybrid = {"all_reduce", "reduce_scatter"} <= set(reduced[-1])
    if is_hybrid and not any("all_reduce" in found for found in reduced[:-1]):
        return "deferred"
    return "sharded" if last and min(earlier) >= _EQUAL * last else "mixed"


def _division(steps: tuple[dict[str, Any], ...], ranks: Sequence[dict[str, Any]]) -> str:
    world_size = ranks[0]["world_size"]
    if len(steps) != world_size:
        return "unknown"
    settings = ranks[0].get("deepspeed")
    clipped = settings is not None and settings["gradient_clipping"] > 0
    is_whole = ranks[0].get("engine") in ("plain", "DDP")
    factors = fit_factors(steps, is_whole=is_whole)
    return describe_division(factors, world_size, clipped)
