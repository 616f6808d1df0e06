"""Why the best configuration is the best, in sentences with numbers."""

from toolkit.memory.hardware import in_gib, with_unit
from toolkit.planning.answer import Answer, Change, PlanRow
from toolkit.program.events import Collective, Program


def describe(row: PlanRow) -> str:
    """Return a configuration's name."""
    step = row.settings
    groups = f" in {step.replicas} replica groups" if step.replicas > 1 else ""
    checkpointing = ", checkpointing" if step.activation_checkpointing else ""
    return (
        f"{step.strategy} {step.accumulation}{groups}, micro-batch {step.micro_batch_size}, "
        f"{step.loss} loss{checkpointing}"
    )


def reason_for(answer: Answer) -> str:
    """Return what the best gains over its other modes and other strategies."""
    best = answer.best
    if best is None:
        return nothing_fits(answer)
    gpu = answer.cluster.gpu
    sentences = [
        f"{describe(best)} is the fastest of what fits: it takes {in_gib(best.peak)} of "
        f"{in_gib(gpu.memory_bytes)} GiB, and {milliseconds(exposed_s(best))} of a step of "
        f"{milliseconds(best.step_s)} wait for communication"
    ]
    if other := _other_mode(answer, best):
        sentences.append(_against_mode(best, other))
    strategies = answer.best_per_strategy()[1:]
    others = [row for row in strategies if row.fits]
    if others:
        sentences.append(
            f"the next strategy, {describe(others[0])}, takes {longer(others[0], best)} longer"
        )
    elif strategies:
        sentences.append("no other strategy fits")
    return "; ".join(sentences)


def nothing_fits(answer: Answer) -> str:
    """Return what comes nearest."""
    least, gpu = answer.rows[0], answer.cluster.gpu
    return (
        f"nothing fits {gpu.name}: the least is {describe(least)} with "
        f"{in_gib(least.peak)} GiB, for which a GPU must have "
        f"{in_gib(gpu.calibration.device_bytes(least.peak))} of {in_gib(gpu.memory_bytes)} GiB"
    )


def describe_change(change: Change, best: PlanRow) -> str:
    """Return whether another configuration would then be the best."""
    if change.best is None:
        return f"with {change.name}: nothing fits"
    if _same(change.best, best):
        return f"with {change.name}: the same, in {milliseconds(change.best.step_s)}"
    return f"with {change.name}: {describe(change.best)}, in {milliseconds(change.best.step_s)}"


def milliseconds(seconds: tuple[float, float]) -> str:
    """Return a range of seconds, or one number where both ends are the same."""
    low, high = (_rounded(1e3 * end) for end in seconds)
    return f"{low} ms" if low == high else f"{low} to {high} ms"


def exposed_s(row: PlanRow) -> tuple[float, float]:
    """Return the seconds at least and at most that a step waits for communication."""
    return row.ends(lambda step: step.exposed_s)


def longer(row: PlanRow, best: PlanRow) -> str:
    """Return by how much a step is longer than the best: the ratio at both ends of the range."""
    ratios = [one / other - 1 for one, other in zip(row.range_s, best.range_s, strict=True)]
    low, high = min(ratios), max(ratios)
    return f"{low:.0%}" if f"{low:.0%}" == f"{high:.0%}" else f"{low:.0%} to {high:.0%}"


def _rounded(number: float) -> str:
    return f"{number:,.0f}" if number >= 10 else f"{number:.2g}"


def _other_mode(answer: Answer, best: PlanRow) -> PlanRow | None:
    """Return the fastest row of the same strategy and groups in another mode."""
    step = best.settings
    return next(
        (
            row
            for row in answer.rows
            if row.settings.strategy == step.strategy
            and row.settings.replicas == step.replicas
            and row.settings.accumulation != step.accumulation
        ),
        None,
    )


def _against_mode(best: PlanRow, other: PlanRow) -> str:
    """State what a mode reduces and holds, and what the other one takes."""
    ours, theirs = (reduced_bytes(row.candidate.program) for row in (best, other))
    more = best.peak - other.peak
    memory = f"{with_unit(abs(more))} {'more' if more > 0 else 'less'}" if more else "as much"
    effect = f"takes {longer(other, best)} longer" if other.fits else "does not fit"
    return (
        f"{best.settings.accumulation} accumulation reduces {with_unit(ours)} of gradients a step "
        f"and holds {memory} at its peak; {other.settings.accumulation} reduces "
        f"{with_unit(theirs)} and {effect}"
    )


def reduced_bytes(program: Program) -> int:
    """Return the payload of all collectives of a step that are no gathers."""
    return sum(
        section.times * event.bytes
        for section in program.sections
        for event in section.events
        if isinstance(event, Collective) and event.kind != "all_gather"
    )


def _same(one: PlanRow, other: PlanRow) -> bool:
    return one.settings == other.settings
