"""Rules: what in the ranks' reports is wrong or costly, in a sentence and with a line."""

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from toolkit.audit.defaults import changes_that_apply
from toolkit.audit.steps import Step

_SAME = 0.01
"""Relative difference up to which two factors or clipping values are the same."""


_EFFECTS = {
    "reduces_every_micro_step": "costly",
    "command_failed": "unseen",
    "watch_failed": "unseen",
    "nothing_watched": "unseen",
}


@dataclass(frozen=True)
class Finding:
    """One fault: a name that stays, a line of the script or None, and a sentence."""

    name: str
    where: str | None
    says: str

    def to_json(self) -> dict[str, Any]:
        """Return it under its names."""
        return {**asdict(self), "effect": self.effect}

    @property
    def effect(self) -> str:
        """Return "costly", "unseen" where the audit itself is incomplete, or "wrong"."""
        return _EFFECTS.get(self.name, "wrong")


@dataclass(frozen=True)
class Seen:
    """All that the rules look at."""

    ranks: Sequence[dict[str, Any]]
    steps: Sequence[Step]

    @property
    def first(self) -> dict[str, Any]:
        """Return the report of the lowest rank."""
        return self.ranks[0]

    @property
    def world_size(self) -> int:
        """Return the ranks of the script's process group."""
        return int(self.first["world_size"])

    @property
    def optimizer_line(self) -> str | None:
        """Return where the first optimizer was built."""
        built = self.first.get("optimizers") or [{"line": None}]
        return built[0]["line"]


def _alone(seen: Seen) -> Iterator[Finding]:
    launched = seen.first["launched_world_size"]
    where = seen.optimizer_line
    if launched > 1 and seen.world_size == 1 and seen.first["steps"]:
        text = f"{launched} processes were launched, but each trains alone: no process group"
        yield Finding("ranks_train_alone", where, text)
    reduces = any(step.reducing_micro_steps for step in seen.steps)
    if seen.world_size > 1 and seen.steps and not reduces:
        text = f"{seen.world_size} ranks never reduce their gradients: each trains alone"
        yield Finding("ranks_train_alone", seen.steps[0].step_line, text)


def _reductions(seen: Seen) -> Iterator[Finding]:
    step = next((s for s in seen.steps if s.mode == "sharded"), None)
    if step is None:
        return
    held_anyway = seen.first["engine"] in ("plain", "DDP")
    if step.asked is None and not held_anyway:
        return
    reason = "it asks to hold them back" if step.asked else "whole gradients are held anyway"
    bytes_ = sum(found["bytes"] for found in step.collectives.values())
    every, once = sum(step.reduced_bytes), step.reduced_bytes[-1]
    text = (
        f"gradients are reduced at each of {step.micro_steps} micro-steps, though {reason}. "
        f"Reducing once a step would save {every - once:,} of the {bytes_:,} bytes that its "
        f"collectives move{_held_instead(seen, step, held_anyway)}"
    )
    where = step.asked_line or step.backward_line
    yield Finding("reduces_every_micro_step", where, text)


def _held_instead(seen: Seen, step: Step, held_anyway: bool) -> str:
    if held_anyway:
        return ", and hold nothing more"
    whole = int(seen.first["parameter_bytes"])
    return (
        f", and hold about {whole:,} bytes of gradients between micro-steps on each rank (in the "
        f"dtype of the parameters), now {step.held_gradient_bytes:,}"
    )


def _division(seen: Seen) -> Iterator[Finding]:
    for step in seen.steps:
        if step.division in ("averaged twice", "summed", "unequal") and seen.world_size > 1:
            if step.division == "summed" and _kind(seen) != "mean":
                continue
            text = f"the gradients of {seen.world_size} ranks are {step.division}, not averaged"
            name = "gradients_" + step.division.replace(" ", "_")
            yield Finding(name, step.step_line, text)
            return
        if step.division.startswith("lost"):
            number = step.division.removeprefix("lost ")
            text = (
                f"the gradient of micro-step {number} of {step.micro_steps} is not in the update, "
                "or on each rank its own alone"
            )
            yield Finding("micro_step_lost", step.step_line, text)
            return


def _losses(seen: Seen) -> list[dict[str, Any]]:
    micro_steps = (m for rank in seen.ranks for s in rank["steps"] for m in s["micro_steps"])
    return [m["loss"] for m in micro_steps if m["loss"]]


def _kind(seen: Seen) -> str:
    kinds = {loss["kind"] for loss in _losses(seen)}
    return kinds.pop() if len(kinds) == 1 else "unknown"


def _loss_scale(seen: Seen) -> Iterator[Finding]:
    step = next((s for s in seen.steps if s.micro_steps > 1), None)
    scales = {round(loss["scale"], 6) for loss in _losses(seen)}
    if step is None or step.division != "averaged" or _kind(seen) != "mean" or len(scales) != 1:
        return
    scale, count, where = scales.pop(), step.micro_steps, step.backward_line
    if scale == 1:
        text = f"the losses of {count} micro-steps are added, not averaged: the gradient is {count}"
        yield Finding("loss_not_divided", where, f"{text} times the mean")
    elif abs(scale * count * count - 1) < _SAME:
        text = f"the loss is divided by {count} micro-steps twice"
        yield Finding("loss_divided_twice", where, text)


def _weighting(seen: Seen) -> Iterator[Finding]:
    for number, step in enumerate(seen.steps):
        if step.weighting != "by micro-batch":
            continue
        own = (m for rank in seen.ranks for m in rank["steps"][number]["micro_steps"])
        valid = [micro_step["loss"]["valid"] for micro_step in own]
        text = (
            f"micro-batches of {min(valid):g} to {max(valid):g} targets weigh the same: the loss "
            "is a mean of means, not the mean over targets"
        )
        yield Finding("weighted_by_micro_batch", step.backward_line, text)
        return


def _memberships(seen: Seen) -> Iterator[Finding]:
    found, where = seen.first["memberships"], seen.optimizer_line
    for name, text in (
        ("missing", "in no optimizer, so never updated"),
        ("twice", "in an optimizer twice"),
    ):
        if found[name]:
            more = f" and {len(found[name]) - 1} more" if len(found[name]) > 1 else ""
            yield Finding(f"parameters_{name}", where, f"{found[name][0]}{more}: {text}")
    if found["stale"]:
        text = f"{found['stale']} of the optimizer's parameters are no model's any more"
        yield Finding("parameters_stale", where, f"{text}; it was built before they were replaced")


def _ties(seen: Seen) -> Iterator[Finding]:
    names = [" and ".join(tie) for tie in seen.first["untied"]]
    if not names and seen.first["untied_embeddings"]:
        names = ["input and output embeddings, which the model's configuration ties"]
    if names:
        text = f"{'; '.join(names)} were one weight and are two now"
        yield Finding("weights_untied", seen.optimizer_line, text)


def _clipping(seen: Seen) -> Iterator[Finding]:
    clips = [clip for s in seen.first["steps"] for clip in s["clips"]]
    engine = seen.first.get("deepspeed")
    if engine and clips:
        asked, found = clips[0]["max_norm"], engine["gradient_clipping"]
        if abs(asked - found) > _SAME * asked:
            text = f"clip_grad_norm_ asks for {asked:g}; DeepSpeed clips at {found:g}"
            yield Finding("clipping_ignored", clips[0]["line"], text)


def _schedule(seen: Seen) -> Iterator[Finding]:
    counts = [s["scheduler_steps"] for s in seen.first["steps"] if s["scheduler_steps"] > 1]
    if counts:
        line = next(s["scheduler_line"] for s in seen.first["steps"] if s["scheduler_steps"] > 1)
        text = (
            f"the learning rate schedule takes {max(counts)} steps per optimizer step; right only "
            f"if its length is {max(counts)} times the number of updates"
        )
        yield Finding("scheduler_steps", line, text)


def _data(seen: Seen) -> Iterator[Finding]:
    where = seen.steps[0].backward_line if seen.steps else None
    batches = [
        [m["batch"] for s in rank["steps"] for m in s["micro_steps"] if m["batch"]]
        for rank in seen.ranks
    ]
    if any(count > 1 for own in batches for count in Counter(own).values()):
        yield Finding("data_twice", where, "a rank sees the same batch more than once")
    counts = Counter(batch for own in batches for batch in set(own))
    if shared := sum(count > 1 for count in counts.values()):
        text = f"{shared} of {len(counts)} batches are seen by several ranks"
        yield Finding("data_on_several_ranks", where, text)


def _replicas(seen: Seen) -> Iterator[Finding]:
    if seen.world_size == 1 or len({len(rank["steps"]) for rank in seen.ranks}) != 1:
        return
    for steps in zip(*(rank["steps"] for rank in seen.ranks), strict=True):
        sums = [step["parameters"] for step in steps]
        for name in sums[0]:
            if len({own.get(name) for own in sums}) > 1:
                text = f"ranks hold different parameters after the same update, first {name}"
                yield Finding("replicas_differ", steps[0]["step_line"], text)
                return


def _left_over(seen: Seen) -> Iterator[Finding]:
    late = [step for step in seen.first["steps"][1:] if step["left_over"]]
    if late:
        text = "gradients of the step before are still there: nothing clears them"
        yield Finding("gradients_not_cleared", late[0]["step_line"], text)


def _changes(seen: Seen) -> Iterator[Finding]:
    accumulates = any(step.micro_steps > 1 for step in seen.steps)
    for text in changes_that_apply(seen.first, accumulates=accumulates):
        yield Finding("changed_default", seen.optimizer_line, text)


_RULES: tuple[Callable[[Seen], Iterator[Finding]], ...] = (
    _reductions,
    _division,
    _loss_scale,
    _weighting,
    _memberships,
    _ties,
    _clipping,
    _schedule,
    _data,
    _replicas,
    _left_over,
    _changes,
)


def find(ranks: Sequence[dict[str, Any]], steps: Sequence[Step], code: int) -> list[Finding]:
    """Return all findings.

    Args:
        ranks: the reports, in their order.
        steps: of `join_steps`.
        code: the command's exit code.
    """
    found = []
    if code:
        ending = f"exit code {code}" if code > 0 else f"signal {-code}"
        found.append(Finding("command_failed", None, f"the command ended with {ending}"))
    for rank in ranks:
        if rank["problem"]:
            last = rank["problem"].strip().splitlines()[-1]
            text = f"the watch of rank {rank['rank']} ended early: {last}"
            found.append(Finding("watch_failed", None, text))
    if not any(rank["steps"] for rank in ranks):
        text = "no optimizer step was seen; is it Python with torch, started without -I, -E or -S?"
        found.append(Finding("nothing_watched", None, text))
    if ranks:
        seen = Seen(ranks, steps)
        found += _alone(seen)
        if steps and ranks[0].get("memberships"):
            found += [finding for rule in _RULES for finding in rule(seen)]
    return found
