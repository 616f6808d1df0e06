"""What was seen, in sentences: the run, its training, and one step."""

from collections.abc import Iterator, Sequence
from typing import Any

from toolkit.audit.steps import Step


def describe_run(ranks: Sequence[dict[str, Any]]) -> Iterator[str]:
    """Yield engine, parameters and versions."""
    first = ranks[0]
    wrappers = ", ".join(first.get("wrappers", ())) or "no model seen"
    yield f"engine {first.get('engine') or 'unknown'} ({wrappers}), {_ranks(first['world_size'])}"
    versions = ", ".join(f"{name} {number}" for name, number in first["versions"].items())
    yield f"versions: {versions}"
    if "parameter_dtypes" in first:
        yield (
            f"dtypes: parameters {_dtypes(first['parameter_dtypes'])}; gradients "
            f"{_dtypes(_gradient_dtypes(ranks))}; optimizer state {_dtypes(first['state_dtypes'])}"
        )
    for optimizer in first.get("optimizers", ()):
        for number, group in enumerate(optimizer["groups"]):
            yield f"{optimizer['kind']} group {number}: {_group(group)}"
    for tie in first.get("ties", ()):
        yield f"one weight: {', '.join(tie)}"
    peak = max(rank["peak_memory_bytes"] for rank in ranks)
    yield f"memory: at most {peak:,} bytes on a rank"


def describe_training(ranks: Sequence[dict[str, Any]], steps: Sequence[Step]) -> Iterator[str]:
    """Yield what happens to losses, gradients, the learning rate and the data."""
    own = [step for rank in ranks for step in rank["steps"]]
    losses = [m["loss"] for step in own for m in step["micro_steps"] if m["loss"]]
    kinds = sorted({loss["kind"] for loss in losses})
    scales = sorted({loss["scale"] for loss in losses})
    if losses:
        span = " to ".join(f"{scale:g}" for scale in dict.fromkeys((scales[0], scales[-1])))
        kind = {"unknown": "of an unknown reduction"}.get(kinds[0], f"a {kinds[0]}")
        yield f"loss: {kind if len(kinds) == 1 else 'mixed'}, multiplied by {span} before backward"
        yield f"targets: weighted {', '.join(sorted({step.weighting for step in steps}))}"
    words = ", ".join(sorted({step.division for step in steps}))
    yield f"gradients of ranks: {words} (the applied gradient fitted with the ranks' own)"
    yield f"clipping: {_clipping(ranks[0])}"
    schedule = sorted({step["scheduler_steps"] for step in own})
    yield f"learning rate schedule: {_list(schedule)} steps per optimizer step on each rank"
    batches = [m["batch"] for step in own for m in step["micro_steps"] if m["batch"]]
    yield f"data: {len(batches)} batches hashed, {len(set(batches))} different"
    yield f"replicas: {_replicas(ranks)}"


def describe_step(step: Step, *, is_first: bool) -> Iterator[str]:
    """Yield micro-steps, mode and collectives of one step."""
    asked = f"; the script asks for {step.asked}" if step.asked else ""
    yield (
        f"{step.micro_steps} micro-steps, {step.reducing_micro_steps} of which reduce gradients; "
        f"effective mode {step.mode or 'none'}{asked}"
    )
    yield f"{step.held_gradient_bytes:,} bytes of gradients are held between micro-steps"
    for phase, kinds in step.phases.items():
        calls = (
            f"{n['calls']} {kind} of {n['bytes']:,} bytes in {_list(n['dtypes'])} among "
            f"{_list(n['ranks'])}"
            for kind, n in kinds.items()
        )
        yield f"{phase}: {'; '.join(calls)}"
    if is_first:
        yield "models are found at the first backward: the forward before it is not in here"


def _ranks(count: int) -> str:
    return "1 rank" if count == 1 else f"{count} ranks"


def _list(values: Sequence[Any]) -> str:
    return " or ".join(str(value) for value in values)


def _dtypes(names: Sequence[str]) -> str:
    return ", ".join(name.removeprefix("torch.") for name in names) or "none seen"


def _gradient_dtypes(ranks: Sequence[dict[str, Any]]) -> list[str]:
    return sorted({name for rank in ranks for s in rank["steps"] for name in s["gradient_dtypes"]})


def _group(group: dict[str, Any]) -> str:
    names = group["parameters"]
    shown = f" ({names[0]} to {names[-1]})" if names else ""
    others = f", {group['others']} tensors of its own" if group["others"] else ""
    rate = f"lr {group['lr']}, weight decay {group['weight_decay']}"
    return f"{len(names)} parameters{shown}{others}, {rate}"


def _clipping(rank: dict[str, Any]) -> str:
    engine = rank.get("deepspeed")
    if engine is not None:
        value = engine["gradient_clipping"]
        return f"DeepSpeed's, to a norm of {value:g}" if value else "none by DeepSpeed"
    clips = [clip for step in rank["steps"] for clip in step["clips"]]
    if not clips:
        return "none"
    limits = sorted({clip["max_norm"] for clip in clips})
    norms = [clip["norm"] for clip in clips if clip["norm"] is not None]
    above = sum(clip["norm"] > clip["max_norm"] for clip in clips if clip["norm"] is not None)
    seen = f"{above} of {len(norms)} norms were above it" if norms else "norms are not read"
    return f"to a norm of {_list([f'{limit:g}' for limit in limits])}, {len(clips)} times; {seen}"


def _replicas(ranks: Sequence[dict[str, Any]]) -> str:
    if len(ranks) == 1:
        return "one rank"
    compared = [
        sums
        for steps in zip(*(rank["steps"] for rank in ranks), strict=False)
        for sums in [[step["parameters"] for step in steps]]
        if sums[0]
    ]
    if not compared:
        return "none, each rank holds its shard"
    equal = all(own == sums[0] for sums in compared for own in sums)
    return "equal" if equal else "different"
