"""One optimizer step of one rank: its micro-steps, reductions, clipping and schedule."""

from collections import Counter
from typing import Any

import torch

from toolkit.audit.loss_graph import Loss
from toolkit.audit.their_code import holding_line
from toolkit.engines.collectives import Collective

_BOOKKEEPING = 64
"""Payloads of at most as many elements are losses, norms and flags; models as small have less."""


class Window:
    """What is seen between the first backward and the end of the optimizer's step."""

    def __init__(self, subject: Any) -> None:
        self._subject = subject
        self._micro_steps: list[dict[str, Any]] = []
        self._own: list[torch.Tensor] = []
        self._bookkeeping = min(_BOOKKEEPING, subject.largest() - 1)
        self._applied: list[torch.Tensor | None] | None = None
        self._gradient_dtypes: list[str] = []
        self._clips: list[tuple[Any, Any, str | None]] = []
        self._schedule: Counter[int] = Counter()
        self._schedule_line: str | None = None
        self._traffic: dict[str, dict[str, dict[str, Any]]] = subject.take_forward_traffic()
        self._left_over = subject.holds_nonzero_gradients()
        self.has_stepped = False
        self.stepped: set[int] = set()
        self.step_line: str | None = None

    def begin_micro_step(self, loss: Loss | None, line: str | None) -> None:
        """Note a backward that is about to run."""
        # What was taken before the update's own closure ran this backward is not what is applied.
        self._applied = None
        if self._micro_steps:
            self._micro_steps[-1]["held_bytes"] = self._subject.held_bytes()
        self._micro_steps.append(
            {
                "loss": loss,
                "line": line,
                "asked": self._subject.asks_to_hold(),
                "holding_line": holding_line(),
                "reduced": Counter(),
                "held_bytes": None,
                "batch": self._subject.take_batch(),
            }
        )

    def end_micro_step(self) -> None:
        """Note a backward that has run."""
        self._own.append(self._subject.samples.take_own())

    def hear(self, phase: str, call: Collective) -> None:
        """Note a collective, and whether it reduces a micro-step's gradients."""
        add_traffic(self._traffic, phase, call)
        is_reduction = call.kind != "all_gather"
        is_before_step = phase != "forward" and self._micro_steps and not self.has_stepped
        if is_reduction and is_before_step and call.elements > self._bookkeeping:
            self._micro_steps[-1]["reduced"][call.kind] += call.elements * call.itemsize

    def take_applied(self) -> None:
        """Take the gradient that the optimizer is about to use, unclipped where that is seen."""
        if self._applied is not None and all(old is not None for old in self._applied):
            return
        found = self._subject.samples.applied()
        if self._applied is None:
            self._applied = found
            self._gradient_dtypes = self._subject.gradient_dtypes()
        else:
            pairs = zip(self._applied, found, strict=True)
            self._applied = [new if old is None else old for old, new in pairs]

    def note_clip(self, max_norm: Any, norm: Any, line: str | None) -> None:
        """Note a clipping and what it returned."""
        self._clips.append((max_norm, norm, line))

    def note_schedule(self, scheduler: int, line: str | None) -> None:
        """Note a step of a learning rate schedule."""
        self._schedule[scheduler] += 1
        self._schedule_line = line

    def describe(self, *, with_fingerprints: bool) -> dict[str, Any]:
        """Return plain numbers; this may wait for the device."""
        samples = self._subject.samples
        for micro_step in self._micro_steps:
            loss = micro_step["loss"]
            micro_step["loss"] = loss.resolve() if loss is not None else None
            micro_step["batch"] = " ".join(bits.text() for bits in micro_step["batch"])
        return {
            "micro_steps": self._micro_steps,
            "own": [own.tolist() for own in self._own],
            "applied": samples.flat(self._applied) if self._applied is not None else [],
            "traffic": self._traffic,
            "left_over": self._left_over,
            "clips": [
                {"max_norm": float(limit), "norm": _number(norm), "line": line}
                for limit, norm, line in self._clips
            ],
            "scheduler_steps": max(self._schedule.values(), default=0),
            "scheduler_line": self._schedule_line,
            "step_line": self.step_line,
            "parameters": self._subject.fingerprints() if with_fingerprints else {},
            "gradient_dtypes": self._gradient_dtypes,
        }


def add_traffic(traffic: dict[str, Any], phase: str, call: Collective) -> None:
    """Add one collective to calls and bytes by phase and kind."""
    kinds = traffic.setdefault(phase, {})
    found = kinds.setdefault(call.kind, {"calls": 0, "bytes": 0, "ranks": [], "dtypes": []})
    found["calls"] += 1
    found["bytes"] += call.elements * call.itemsize
    if len(call.ranks) not in found["ranks"]:
        found["ranks"].append(len(call.ranks))
    if (dtype := str(call.dtype).removeprefix("torch.")) not in found["dtypes"]:
        found["dtypes"].append(dtype)


def _number(norm: Any) -> float | None:
    """Return a norm's value unless that would take a collective."""
    if isinstance(norm, torch.Tensor) and hasattr(norm, "placements"):
        return None
    return float(norm)
