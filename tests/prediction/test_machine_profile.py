"""Curves through measured collectives, and the file they are kept in."""

from pathlib import Path

import pytest

from toolkit.errors import UsageError
from toolkit.prediction.machine_profile import Point, bus_factor, fit_curve, read_profile


def points(**seconds_by_kib: float) -> list[Point]:
    return [
        Point(bytes=int(kib[1:]) * 1024, seconds=seconds, spread=0.0, cpu_s=seconds / 10)
        for kib, seconds in seconds_by_kib.items()
    ]


def on_a_line(latency_s: float, bytes_per_s: float, *sizes: int) -> list[Point]:
    return [Point(bytes=size, seconds=latency_s + size / bytes_per_s, spread=0.0) for size in sizes]


def test_points_on_a_line_give_that_line() -> None:
    curve = fit_curve(on_a_line(2e-3, 5e6, 1_000, 10_000, 100_000, 1_000_000))
    assert curve.latency_s == pytest.approx(2e-3)
    assert curve.bytes_per_s == pytest.approx(5e6)


def test_a_few_points_off_the_line_do_not_bend_it() -> None:
    measured = on_a_line(2e-3, 5e6, 1_000, 4_000, 16_000, 64_000, 256_000, 1_024_000)
    # What a token bucket lets pass at once, and a call that was disturbed.
    measured[1] = measured[1].model_copy(update={"seconds": 0.4e-3})
    measured[4] = measured[4].model_copy(update={"seconds": 9e-2})
    curve = fit_curve(measured)
    assert curve.latency_s == pytest.approx(2e-3)
    assert curve.bytes_per_s == pytest.approx(5e6)


def test_latency_is_never_below_nothing() -> None:
    assert fit_curve(points(k1=1e-4, k1000=0.5)).latency_s == 0


def test_times_that_do_not_grow_have_no_line() -> None:
    with pytest.raises(ValueError, match="do not grow"):
        fit_curve(points(k1=2e-3, k4=1e-3))


def test_time_is_read_between_points_and_beyond_them() -> None:
    curve = fit_curve(points(k1=1e-3, k3=3e-3, k5=4e-3))
    assert curve.seconds(500) == 1e-3
    assert curve.seconds(2 * 1024) == pytest.approx(2e-3)
    assert curve.seconds(4 * 1024) == pytest.approx(3.5e-3)
    assert curve.seconds(15 * 1024) == pytest.approx(4e-3 + 10 * 1024 / curve.bytes_per_s)


def test_processor_time_is_that_of_the_largest_payload() -> None:
    assert fit_curve(points(k1=1e-3, k100=4e-3)).cpu_s_per_byte == pytest.approx(4e-4 / 102_400)


def test_bus_bandwidth_is_as_nccl_tests_defines_it() -> None:
    # doc/PERFORMANCE.md of nccl-tests, for n = 8: 2 (n - 1) / n, and (n - 1) / n.
    assert bus_factor("all_reduce", 8) == 1.75
    assert bus_factor("reduce_scatter", 8) == bus_factor("all_gather", 8) == 0.875


def test_what_is_no_profile_is_refused_in_a_sentence(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"missing\.json: No such file"):
        read_profile(tmp_path / "missing.json")
    (tmp_path / "other.json").write_text('{"world_size": 2}')
    with pytest.raises(UsageError, match=r"other\.json: not a machine profile: environment"):
        read_profile(tmp_path / "other.json")
    (tmp_path / "other.json").write_bytes(b"\xff\xfe{}")
    with pytest.raises(UsageError, match=r"other\.json: not a machine profile: the file"):
        read_profile(tmp_path / "other.json")
