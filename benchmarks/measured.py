"""Records in the shape that charts and tables want: the repeats of a case as one."""

from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from statistics import median, quantiles
from typing import Any, NamedTuple, TypeVar

from benchmarks.record import Bounds, Case, Record, Traffic
from toolkit.engines.strategies import ACCUMULATIONS, STRATEGIES

Item = TypeVar("Item")

KINDS = ("all_reduce", "reduce_scatter", "all_to_all", "all_gather")
CHOICE = {"strategy", "accumulation", "grad_accum_steps"}
"""Fields of a case that a user chooses between; the others are its setting."""


class Spread(NamedTuple):
    """A median between two ends."""

    median: float
    low: float
    high: float

    @classmethod
    def over(cls, values: Sequence[float]) -> "Spread":
        """Return median, lowest and highest of at least one value."""
        return cls(median(values), min(values), max(values))

    @classmethod
    def quartiles(cls, values: Iterable[float]) -> "Spread":
        """Return median and quartiles of at least two values."""
        low, middle, high = quantiles(values, n=4, method="inclusive")
        return cls(middle, low, high)


@dataclass(frozen=True)
class Measured:
    """A case and the records of its repeats, at least one, all of them good."""

    case: Case
    records: tuple[Record, ...]

    @cached_property
    def step_s(self) -> Spread:
        """Seconds per optimizer step; a repeat counts with the median of its timed steps."""
        return Spread.over([step_seconds(record) for record in self.records])

    @cached_property
    def tokens_per_s(self) -> Spread:
        """Tokens of all ranks per second."""
        tokens = self.case.tokens_per_step
        return Spread.over([tokens / step_seconds(record) for record in self.records])


def grouped(items: Iterable[Item], key: Callable[[Item], Hashable]) -> list[list[Item]]:
    """Return lists of items with equal keys, in the order of their first ones."""
    groups: dict[Hashable, list[Item]] = {}
    for item in items:
        groups.setdefault(key(item), []).append(item)
    return list(groups.values())


def step_seconds(record: Record) -> float:
    """Return the median seconds of a good record's timed steps."""
    assert record.step_s
    return median(record.step_s)


def setting_of(case: Case, *, without: Iterable[str] = ()) -> str:
    """Return all of a case but the choice and `without`, as a text that can be compared."""
    return case.model_dump_json(exclude=CHOICE.union(without))


def why_not_measured(record: Record) -> str | None:
    """Return why a record counts for nothing, None if it does count."""
    if record.skipped or record.error:
        return f"skipped: {record.skipped}" if record.skipped else f"failed: {record.error}"
    first = record.agreement
    if first is None:
        return "failed: the first step was not compared with the reference"
    if not first.ok:
        return (
            f"failed: the first step is not the reference's: loss {first.loss:.7g} for "
            f"{first.reference_loss:.7g}, grad_norm {first.grad_norm:.7g} for "
            f"{first.reference_grad_norm:.7g}"
        )
    return None if record.step_s else "failed: no step was timed"


def measured_cases(records: Iterable[Record]) -> list[Measured]:
    """Return the cases that were measured, in the order of tables."""
    good = [record for record in records if why_not_measured(record) is None]
    repeats = grouped(good, lambda record: record.case)
    found = [Measured(group[0].case, tuple(group)) for group in repeats]
    return sorted(found, key=lambda measured: _order(measured.case))


def _order(case: Case) -> tuple[Any, ...]:
    return (
        case.model.parameter_count,
        case.world_size,
        case.precision,
        case.tokens_per_micro_step,
        case.link_mbit_per_s or float("inf"),
        case.loss,
        case.compile,
        STRATEGIES.index(case.strategy),
        case.grad_accum_steps,
        [*ACCUMULATIONS, case.accumulation].index(case.accumulation),
        str(case.accumulation),
        case.reduce or "",
    )


def varied_fields(cases: Iterable[Case], *, without: Iterable[str] = ()) -> list[str]:
    """Return the fields of the setting in which cases differ, in the order of `Case`."""
    found = list(cases)
    fields = [name for name in Case.model_fields if name not in CHOICE.union(without)]
    return [name for name in fields if len({getattr(case, name) for case in found}) > 1]


def subject(cases: Sequence[Case]) -> str:
    """Return the model, ranks and precision that all cases have in common, in words."""
    varied = varied_fields(cases)
    fields = [name for name in ("model", "world_size", "precision") if name not in varied]
    return describe(cases[0], fields) if cases else ""


def describe(case: Case, fields: Iterable[str], *first: str) -> str:
    """Return `first` and then the fields in words, `1 x 64 tokens, 100 Mbit/s`."""
    words = (*first, *(_words(case, field) for field in fields))
    return ", ".join(dict.fromkeys(filter(None, words)))


def _words(case: Case, field: str) -> str:
    tokens = f"{case.micro_batch_size} x {case.seq_len} tokens"
    words = {
        "micro_batch_size": tokens,
        "seq_len": tokens,
        "world_size": f"{case.world_size} {'rank' if case.world_size == 1 else 'ranks'}",
        "model": f"{rounded(case.model.parameter_count / 1e6)}M parameters",
        "loss": f"{case.loss} loss",
        "activation_checkpointing": "checkpointing"
        if case.activation_checkpointing
        else "all activations kept",
        "compile": "compiled" if case.compile else "eager",
        "data": f"{case.data} data",
        "link_mbit_per_s": link_words(case.link_mbit_per_s),
    }
    return words.get(field, str(getattr(case, field)))


def link_words(mbit_per_s: float | None) -> str:
    """Return a link's rate, `100 Mbit/s`, or that it is the machine's own."""
    return "unthrottled" if mbit_per_s is None else f"{mbit_per_s:,g} Mbit/s"


def rounded(value: float) -> str:
    """Return three significant digits, written out: `1,230`."""
    return f"{float(f'{value:.3g}'):,g}"


def payload(traffic: dict[str, Traffic], kinds: Sequence[str] = KINDS) -> int:
    """Return the bytes of some kinds together."""
    return sum(traffic[kind].bytes for kind in kinds if kind in traffic)


def expected_payload(record: Record, kinds: Sequence[str] = KINDS) -> Bounds:
    """Return what the formulas give for `payload`, with equal ends where they are exact."""
    expected = record.expected_collectives or {}
    ranges = [_bounds(expected[kind].bytes) for kind in kinds if kind in expected]
    return Bounds(low=sum(r.low for r in ranges), high=sum(r.high for r in ranges))


def counts_agree(record: Record) -> bool:
    """Whether calls and bytes of every kind are those of the formulas."""
    counted, expected = record.collectives or {}, record.expected_collectives or {}
    return counted.keys() == expected.keys() and all(
        _bounds(right).low <= found <= _bounds(right).high
        for kind, wanted in expected.items()
        for right, found in (
            (wanted.bytes, counted[kind].bytes),
            (wanted.calls, counted[kind].calls),
        )
    )


def gradients_agree(record: Record) -> bool:
    """Whether the gradients held between micro-steps are as large as by the formula."""
    return record.gradient_bytes_held in (None, record.expected_gradient_bytes_held)


def _bounds(value: int | Bounds) -> Bounds:
    return value if isinstance(value, Bounds) else Bounds(low=value, high=value)
