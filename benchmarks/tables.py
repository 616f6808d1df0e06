"""The tables of a report: rows of text by column, the first `words` columns words, then numbers."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from benchmarks.comparison import (
    BREAK_EVEN,
    PERCENT,
    Pair,
    crossing,
    measured_points,
    predicted_points,
)
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
from toolkit.prediction.machine_profile import KINDS as PROFILED
from toolkit.prediction.machine_profile import MachineProfile, bus_factor

MIB = 2**20
NOTHING = "-"


class Table(NamedTuple):
    """Rows with equal keys, its head; all from column `words` on is set as numbers."""

    title: str
    words: int
    rows: Sequence[Mapping[str, str]]

    @property
    def columns(self) -> list[str]:
        """Names of the columns that hold something in at least one row."""
        return [name for name in self.rows[0] if any(row[name] != NOTHING for row in self.rows)]


def prediction_table(pairs: Sequence[Pair]) -> Table:
    """Return measured and predicted ratios, pair by pair."""
    varied = varied_fields(pair.case for pair in pairs)
    rows = [
        {
            "strategy": pair.case.strategy,
            "setting": describe(pair.case, varied),
            "A": str(pair.case.grad_accum_steps),
            "measured": f"{pair.ratio.median:.2f}",
            "lowest to highest": f"{pair.ratio.low:.2f} to {pair.ratio.high:.2f}",
            "predicted": _or_nothing(pair.predicted, "{:.2f}"),
            "error": _or_nothing(pair.error, "{:+.1f} %", scale=100),
            f"within {PERCENT}": _yes_or_no(pair.within),
            "faster mode": pair.faster or "neither",
            "named right": _yes_or_no(pair.named_right),
        }
        for pair in pairs
    ]
    return Table("Sharded by replicated step time", 2, rows)


def crossing_table(groups: Sequence[Sequence[Pair]]) -> Table:
    """Return where the modes meet on the axis of link rates, as measured and as predicted."""
    pairs = [pair.case for group in groups for pair in group]
    varied = varied_fields(pairs, without=["link_mbit_per_s"])
    rows = [
        {
            "strategy": group[0].case.strategy,
            "setting": describe(group[0].case, varied),
            "A": str(group[0].case.grad_accum_steps),
            "as long, measured": crossing(measured_points(group), 1).words,
            "as long, predicted": crossing(predicted_points(group), 1).words,
            f"{PERCENT} longer, measured": crossing(measured_points(group), BREAK_EVEN).words,
            f"{PERCENT} longer, predicted": crossing(predicted_points(group), BREAK_EVEN).words,
        }
        for group in groups
    ]
    return Table("Link rate from which on sharded takes no longer than replicated", 2, rows)


def profile_table(profiles: Sequence[MachineProfile]) -> Table:
    """Return what predictions know of each link: the line through its collectives' times."""
    rows = [
        {
            "link": link_words(profile.link_mbit_per_s),
            "ranks": str(profile.world_size),
            "backend": profile.backend,
            **{kind: _line(profile, kind) for kind in PROFILED},
            "matrix products, GFLOP/s per rank": f"{profile.matmul_flops_per_s / 1e9:,.1f}",
        }
        for profile in profiles
    ]
    return Table("Collectives as measured for the predictions: latency, bus bandwidth", 3, rows)


def _line(profile: MachineProfile, kind: EngineKind) -> str:
    curve = profile.collectives.get(kind)
    if curve is None:
        return ""
    bus = curve.bytes_per_s * bus_factor(kind, profile.world_size)
    return f"{1e3 * curve.latency_s:.2f} ms, {rounded(bus / 1e6)} MB/s"


def bytes_table(cases: Sequence[Measured]) -> Table:
    """Return what was counted of each kind of collective, beside the formulas."""
    varied = varied_fields(m.case for m in cases)
    rows = []
    for measured in cases:
        record = measured.records[0]
        agree = all(counts_agree(r) and gradients_agree(r) for r in measured.records)
        rows.append(
            {
                **_name(measured.case, varied),
                **{kind: _counted(record, kind) for kind in KINDS},
                "gradients held": _beside(
                    record.gradient_bytes_held, record.expected_gradient_bytes_held
                ),
                "as by the formulas": _yes_or_no(agree),
            }
        )
    return Table("MiB of payload per optimizer step and rank: counted (formula)", 3, rows)


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
    rows = []
    for measured in cases:
        case, record = measured.case, measured.records[0]
        rows.append(
            {
                **_name(case, varied),
                "repeats": str(len(measured.records)),
                "step, ms": _spread(measured.step_s, scale=1e3, digits=1),
                "predicted, ms": _or_nothing(predicted_s.get(case), "{:,.1f}", scale=1e3),
                "tokens/s": _spread(measured.tokens_per_s, digits=0),
                "per rank": f"{measured.tokens_per_s.median / case.world_size:,.0f}",
                "MFU": _or_nothing(record.mfu, "{:.1f} %", scale=100),
                **{
                    f"{title}, ms": _or_nothing(
                        getattr(record.split, f"{part}_s", None), "{:,.1f}", scale=1e3
                    )
                    for part, title in _PARTS.items()
                },
                "peak MiB (estimate)": _beside(
                    record.peak_memory_bytes, record.estimated_peak_memory_bytes
                ),
            }
        )
    return Table("Every case that was measured: medians (lowest to highest repeat)", 3, rows)


_PARTS = {
    "forward": "forward",
    "backward": "backward",
    "communication": "exposed communication",
    "optimizer": "optimizer",
}


def _name(case: Case, varied: Sequence[str]) -> dict[str, str]:
    return {
        "strategy": case.strategy,
        "mode": str(case.accumulation),
        "setting": describe(case, varied),
        "A": str(case.grad_accum_steps),
    }


def unmeasured_table(records: Sequence[Record]) -> Table:
    """Return what failed or was skipped, with the reason."""
    reasons = [(record, why_not_measured(record)) for record in records]
    measured = {record.case for record, why in reasons if why is None}
    rows = [
        {
            "case": record.case.label,
            "repeat": str(record.repeat),
            "other repeats": "measured" if record.case in measured else NOTHING,
            "reason": why,
        }
        for record, why in reasons
        if why is not None
    ]
    return Table("Not measured", 4, rows)


def _spread(spread: Spread, *, scale: float = 1, digits: int) -> str:
    middle, low, high = (f"{scale * value:,.{digits}f}" for value in spread)
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
