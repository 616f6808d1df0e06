"""Two runs beside each other: how they were set up, where they part, what they cost."""

from collections.abc import Iterator

from toolkit.memory.hardware import GIB
from toolkit.runs.record import RunRecord

# Where a run is kept is no difference.
_SILENT = ("output_dir", "run_name")
_LAUNCH = ("strategy", "world_size", "replicas", "precision")
_LEARNED = ("loss", "grad_norm")


def compare_runs(a: RunRecord, b: RunRecord) -> list[str]:
    """Return lines for a person; values are A's, then B's."""
    return [
        f"A {a.folder}",
        f"B {b.folder}",
        *(_settings(a, b) or ["configuration   the same"]),
        *_learned(a, b),
        *_ratio("speed", "tokens/s", a.tokens_per_s, b.tokens_per_s, digits=0),
        *_ratio("memory", "GiB at the peak", *(_peak_gib(run) for run in (a, b)), digits=3),
    ]


def _settings(a: RunRecord, b: RunRecord) -> list[str]:
    pairs = [(key, a.launch.get(key), b.launch.get(key)) for key in _LAUNCH]
    keys = sorted((a.config.keys() | b.config.keys()) - set(_SILENT))
    pairs += [(key, a.config.get(key), b.config.get(key)) for key in keys]
    differing = [pair for pair in pairs if pair[1] != pair[2]]
    width = max((len(key) for key, _, _ in differing), default=0)
    return [f"{key:<{width}} {before} -> {after}" for key, before, after in differing]


def _learned(a: RunRecord, b: RunRecord) -> Iterator[str]:
    first, second = ({record["step"]: record for record in run.train} for run in (a, b))
    shared = sorted(first.keys() & second.keys())
    if not shared:
        yield "training        they have no step in common"
        return
    for key in _LEARNED:
        differing = (step for step in shared if first[step][key] != second[step][key])
        step = next(differing, None)
        if step is None:
            yield f"{key:<15} the same in all {len(shared):,} steps that both have"
            continue
        before, after = first[step][key], second[step][key]
        last = shared[-1]
        yield (
            f"{key:<15} differs from step {step} on: {before:.6f}, {after:.6f} "
            f"({_relative(before, after)}); at step {last} {first[last][key]:.6f}, "
            f"{second[last][key]:.6f} ({_relative(first[last][key], second[last][key])})"
        )
    yield from _validation(a, b)


def _validation(a: RunRecord, b: RunRecord) -> Iterator[str]:
    first, second = (
        {record["step"]: record["loss"] for record in run.evaluations} for run in (a, b)
    )
    if shared := first.keys() & second.keys():
        step = max(shared)
        yield (
            f"validation      at step {step} {first[step]:.6f}, {second[step]:.6f} "
            f"({_relative(first[step], second[step])})"
        )


def _relative(before: float, after: float) -> str:
    return f"{after / before - 1:+.2e}" if before else f"{after - before:+.2e}"


def _ratio(
    name: str, unit: str, before: float | None, after: float | None, *, digits: int
) -> Iterator[str]:
    if before and after:
        yield (
            f"{name:<15} {before:,.{digits}f}, {after:,.{digits}f} {unit}: B has "
            f"{after / before:.2f} times A's"
        )


def _peak_gib(run: RunRecord) -> float | None:
    return None if run.peak_memory_bytes is None else run.peak_memory_bytes / GIB
