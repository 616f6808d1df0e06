"""The tables of a report."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from benchmarks.comparison import (
    BREAK_EVEN,
    PERCENT,
    Pair,
    crossing,
    measured_points,
    predicted_points,
)
from benchmarks.machine_profile import KINDS as PROFILED
from benchmarks.machine_profile import MachineProfile, bus_factor
from benchmarks.measured import (
    KINDS,
    Measured,
    Spread,
    counts_agree,
    describe,
    expected_payload,
    gradients_agree,
    link_words,
    payload,
    rounded,
    varied_fields,
    why_not_measured,
)
from benchmarks.record import Case, Record
from toolkit.engines.traffic import EngineKind

MIB = 2**20
NOTHING = "-"


@dataclass(frozen=True)
class Table:
    """Cells as text; the first `left` columns hold words, the others numbers."""

    title: str
    head: Sequence[str]
    rows: Sequence[Sequence[str]]
    left: int


def prediction_table(pairs: Sequence[Pair]) -> Table:
    """Return measured and predicted ratios, pair by pair."""
    varied = varied_fields(pair.case for pair in pairs)
    return Table(
        title="Sharded by replicated step time: prediction beside measurement",
        head=(
            *("strategy", "setting", "A", "measured", "lowest to highest", "predicted", "error"),
            *(f"within {PERCENT}", "faster mode", "named right"),
        ),
        rows=[
            (
                pair.case.strategy,
                describe(pair.case, varied),
                str(pair.case.grad_accum_steps),
                f"{pair.ratio.median:.2f}",
                f"{pair.ratio.low:.2f} to {pair.ratio.high:.2f}",
                _or_nothing(pair.predicted, "{:.2f}"),
                _or_nothing(pair.error, "{:+.1f} %", scale=100),
                _yes_or_no(pair.within),
                pair.faster or "neither",
                _yes_or_no(pair.named_right),
            )
            for pair in pairs
        ],
        left=2,
    )


def crossing_table(groups: Sequence[Sequence[Pair]]) -> Table:
    """Return where the modes meet on the axis of link rates, as measured and as predicted."""
    fields = varied_fields(pair.case for group in groups for pair in group)
    varied = [name for name in fields if name != "link_mbit_per_s"]
    return Table(
        title="Link rate from which on sharded takes no longer than replicated",
        head=(
            *("strategy", "setting", "A", "as long, measured", "as long, predicted"),
            *(f"{PERCENT} longer, measured", f"{PERCENT} longer, predicted"),
        ),
        rows=[
            (
                group[0].case.strategy,
                describe(group[0].case, varied),
                str(group[0].case.grad_accum_steps),
                *(
                    crossing(points, level).words
                    for level in (1, BREAK_EVEN)
                    for points in (measured_points(group), predicted_points(group))
                ),
            )
            for group in groups
        ],
        left=2,
    )


def profile_table(profiles: Sequence[MachineProfile]) -> Table:
    """Return what predictions know of each link: the line through its collectives' times."""
    return Table(
        title="Collectives as measured for the predictions: latency, bus bandwidth",
        head=("link", "ranks", "backend", *KINDS, "matrix products, GFLOP/s per rank"),
        rows=[
            (
                link_words(profile.link_mbit_per_s),
                str(profile.world_size),
                profile.backend,
                *(_line(profile, kind) for kind in PROFILED),
                f"{profile.matmul_flops_per_s / 1e9:,.1f}",
            )
            for profile in profiles
        ],
        left=3,
    )


def _line(profile: MachineProfile, kind: EngineKind) -> str:
    curve = profile.collectives[kind]
    bus = curve.bytes_per_s * bus_factor(kind, profile.world_size)
    return f"{1e3 * curve.latency_s:.2f} ms, {rounded(bus / 1e6)} MB/s"


def bytes_table(cases: Sequence[Measured]) -> Table:
    """Return what was counted of each kind of collective, beside the formulas."""
    varied = varied_fields(m.case for m in cases)
    return Table(
        title="MiB of payload per optimizer step and rank: counted (formula)",
        head=("strategy", "mode", "setting", "A", *KINDS, "gradients held", "as the formulas say"),
        rows=[
            (
                *_name(measured.case, varied),
                *(_counted(measured.records[0], kind) for kind in KINDS),
                _beside(
                    measured.records[0].gradient_bytes_held,
                    measured.records[0].expected_gradient_bytes_held,
                ),
                _yes_or_no(all(counts_agree(r) and gradients_agree(r) for r in measured.records)),
            )
            for measured in cases
        ],
        left=3,
    )


def _counted(record: Record, kind: str) -> str:
    bounds = expected_payload(record, [kind])
    counted = payload(record.collectives or {}, [kind])
    if not counted and not bounds.high:
        return NOTHING
    low, high = bounds.low / MIB, bounds.high / MIB
    formula = f"{low:,.2f}" if low == high else f"{low:,.2f} to {high:,.2f}"
    return f"{counted / MIB:,.2f} ({formula})"


def cases_table(cases: Sequence[Measured], predicted_s: Mapping[Case, float]) -> Table:
    """Return every case with its times and its memory."""
    varied = varied_fields(m.case for m in cases)
    return Table(
        title="Every case that was measured: medians (lowest to highest repeat)",
        head=(
            *("strategy", "mode", "setting", "A", "repeats", "step, ms", "predicted, ms"),
            *("tokens/s", "per rank", "MFU", "forward, ms", "backward, ms"),
            *("exposed communication, ms", "optimizer, ms", "peak MiB (estimate)"),
        ),
        rows=[
            (
                *_name(measured.case, varied),
                str(len(measured.records)),
                _spread(measured.step_s, scale=1e3, digits=1),
                _or_nothing(predicted_s.get(measured.case), "{:,.1f}", scale=1e3),
                _spread(measured.tokens_per_s, digits=0),
                f"{measured.tokens_per_s.median / measured.case.world_size:,.0f}",
                _or_nothing(measured.records[0].mfu, "{:.1f} %", scale=100),
                *_split(measured.records[0]),
                _beside(
                    measured.records[0].peak_memory_bytes,
                    measured.records[0].estimated_peak_memory_bytes,
                ),
            )
            for measured in cases
        ],
        left=3,
    )


def _name(case: Case, varied: Iterable[str]) -> tuple[str, str, str, str]:
    return case.strategy, case.accumulation, describe(case, varied), str(case.grad_accum_steps)


def _split(record: Record) -> list[str]:
    split = record.split
    if split is None:
        return [NOTHING] * 4
    parts = (split.forward_s, split.backward_s, split.communication_s, split.optimizer_s)
    return [f"{1e3 * seconds:,.1f}" for seconds in parts]


def unmeasured_table(records: Sequence[Record]) -> Table:
    """Return what failed or was skipped, with the reason."""
    reasons = [(record, why_not_measured(record)) for record in records]
    measured = {record.case for record, why in reasons if why is None}
    return Table(
        title="Not measured",
        head=("case", "repeat", "other repeats", "reason"),
        rows=[
            (r.case.label, str(r.repeat), "measured" if r.case in measured else NOTHING, why)
            for r, why in reasons
            if why is not None
        ],
        left=4,
    )


def _spread(spread: Spread, *, scale: float = 1, digits: int) -> str:
    middle, low, high = (
        f"{scale * value:,.{digits}f}" for value in (spread.median, spread.low, spread.high)
    )
    return f"{middle} ({low} to {high})"


def _beside(found: int | None, formula: int | None) -> str:
    """Return MiB that were found, and in brackets those that were calculated."""
    if found is None:
        return NOTHING
    return f"{found / MIB:,.2f} ({_or_nothing(formula, '{:,.2f}', scale=1 / MIB)})"


def _or_nothing(value: float | None, form: str, *, scale: float = 1) -> str:
    return NOTHING if value is None else form.format(scale * value)


def _yes_or_no(value: bool | None) -> str:
    return {True: "yes", False: "no", None: NOTHING}[value]
