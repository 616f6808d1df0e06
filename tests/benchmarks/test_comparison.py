"""Ratios, crossings and what counts as measured, on made-up records."""

import pytest

from benchmarks.comparison import Pair, crossing, over_links, pairs_of
from benchmarks.figures import (
    COLOURS,
    DARK_COLOURS,
    DARK_GREY,
    DARK_INK,
    DARK_PAPER,
    GREY,
    INK,
    PAPER,
)
from benchmarks.measured import Measured, counts_agree, gradients_agree, measured_cases
from benchmarks.record import Case, Record, Traffic
from tests.benchmarks.plausible import case, record, unmeasured


def timed(of: Case, *seconds: float) -> Measured:
    return Measured(of, tuple(record(of, i, step_s=[s]) for i, s in enumerate(seconds)))


def pair(replicated_s: float, sharded_s: float, predicted: float | None = None) -> Pair:
    modes = timed(case("ddp", "replicated"), replicated_s), timed(case("ddp", "sharded"), sharded_s)
    return Pair(*modes, predicted)


def test_ratios_are_taken_repeat_by_repeat() -> None:
    # The machine slows down between repeats: medians alone would say 2.
    replicated = timed(case("ddp", "replicated"), 1.0, 2.0, 4.0)
    sharded = timed(case("ddp", "sharded"), 1.5, 3.0, 8.0)
    (found,) = pairs_of([replicated, sharded], {})
    assert (found.ratio.median, found.ratio.low, found.ratio.high) == (1.5, 1.5, 2.0)
    assert found.predicted is None
    assert found.within is None


def test_pairs_differ_in_the_mode_alone_and_have_more_than_one_micro_step() -> None:
    cases = [
        case("ddp", "replicated", grad_accum_steps=1),
        case("ddp", "sharded", grad_accum_steps=1),
        case("ddp", "replicated", grad_accum_steps=4),
        case("ddp", "sharded", grad_accum_steps=16),
        case("fsdp2", "sharded", grad_accum_steps=4),
    ]
    assert pairs_of([timed(of, 1.0) for of in cases], {}) == []


@pytest.mark.parametrize(
    ("measured", "predicted", "within", "named_right"),
    [
        (2.0, 2.19, True, True),
        (2.0, 2.21, False, True),
        (2.0, 0.99, False, False),
        (0.5, 0.46, True, True),
        (0.5, 1.01, False, False),
        (1.05, 0.97, True, None),
    ],
)
def test_a_prediction_is_judged(
    measured: float, predicted: float, within: bool, named_right: bool | None
) -> None:
    found = pair(1.0, measured, predicted)
    assert found.within is within
    assert found.named_right is named_right


def test_the_crossing_lies_between_the_last_rates_that_it_divides() -> None:
    # On logarithmic axes the ratio falls straight, from 4 at 100 to 1 at 1,600.
    assert crossing([(100, 4.0), (1600, 1.0)], 2.0).rate == pytest.approx(400)
    assert crossing([(100, 0.9), (200, 4.0), (3200, 1.0)], 2.0).rate == pytest.approx(800)
    assert crossing([(100, 4.0), (1600, 2.5)], 2.0).words == "not up to 1,600 Mbit/s"
    assert crossing([(100, 1.5), (1600, 1.2)], 2.0).words == "at every rate"
    assert crossing([], 2.0).rate is None


def test_links_are_compared_with_all_else_equal() -> None:
    cases = [
        timed(case("ddp", mode, link_mbit_per_s=link, seq_len=seq_len), 1.0)
        for mode in ("replicated", "sharded")
        for link, seq_len in [(1000, 64), (100, 64), (100, 32), (None, 64)]
    ]
    (group,) = over_links(pairs_of(cases, {}))
    assert [found.case.link_mbit_per_s for found in group] == [100, 1000]


def test_only_good_records_count() -> None:
    good = record(case("ddp", "sharded"))
    assert good.agreement
    wrong = good.agreement.model_copy(update={"loss": 7.7, "ok": False})
    others = [
        unmeasured(good.case, error="a rank died"),
        unmeasured(good.case, skipped="too large"),
        good.model_copy(update={"agreement": wrong}),
        good.model_copy(update={"agreement": None}),
        good.model_copy(update={"step_s": []}),
    ]
    (found,) = measured_cases([*others, good])
    assert found.records == (good,)


def test_a_count_that_is_not_the_formulas_is_seen() -> None:
    good = record(case("zero3", "sharded"))
    assert counts_agree(good)
    assert gradients_agree(good)
    for kind, of in (good.collectives or {}).items():
        for more in (
            Traffic(calls=of.calls, bytes=of.bytes + 10**9),
            Traffic(calls=10**6, bytes=of.bytes),
        ):
            assert not counts_agree(
                _with(good, collectives={**(good.collectives or {}), kind: more})
            )
    assert not counts_agree(_with(good, collectives={}))
    assert not gradients_agree(_with(good, gradient_bytes_held=1))


def _with(of: Record, **changes: object) -> Record:
    return of.model_copy(update=changes)


@pytest.mark.parametrize(
    ("paper", "colours", "text"),
    [(PAPER, COLOURS, (INK, GREY)), (DARK_PAPER, DARK_COLOURS, (DARK_INK, DARK_GREY))],
)
def test_lines_and_text_stand_out_from_the_paper(
    paper: str, colours: dict[str, str], text: tuple[str, ...]
) -> None:
    # WCAG 2.2, criteria 1.4.11 and 1.4.3.
    assert min(contrast(colour, paper) for colour in colours.values()) >= 3
    assert min(contrast(colour, paper) for colour in text) >= 4.5


def contrast(one: str, other: str) -> float:
    low, high = sorted(luminance(colour) for colour in (one, other))
    return (high + 0.05) / (low + 0.05)


def luminance(colour: str) -> float:
    parts = (int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5))
    linear = [p / 12.92 if p <= 0.04045 else ((p + 0.055) / 1.055) ** 2.4 for p in parts]
    return sum(weight * p for weight, p in zip((0.2126, 0.7152, 0.0722), linear, strict=True))
