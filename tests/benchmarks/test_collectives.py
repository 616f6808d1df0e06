"""Real collectives over a link: its rate, as seen by gloo; and what profiles a sweep needs."""

from pathlib import Path

import pytest

from benchmarks.collectives import main, measure_profile, missing_profiles
from benchmarks.links import links_unavailable
from benchmarks.record import append_record
from tests.benchmarks.cases import case, profile, record
from toolkit.errors import UsageError
from toolkit.prediction.machine_profile import bus_factor, read_profile


def test_a_link_of_three_ranks_is_refused() -> None:
    with pytest.raises(UsageError, match="a link joins 2 ranks, not 3"):
        measure_profile(world_size=3, link_mbit_per_s=100)


@pytest.mark.parametrize("rate", [float("nan"), float("inf"), -1.0, 0.0, 1e-9, 100_001.0])
def test_a_rate_no_link_can_have_is_refused_before_measuring(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, rate: float
) -> None:
    monkeypatch.setattr("benchmarks.collectives.measure_profile", pytest.fail)
    with pytest.raises(UsageError, match=r"rate must be 0\.01 to 100,000 Mbit/s, got"):
        main(out=tmp_path / "profile.json", world_size=2, link_mbit=rate)


@pytest.mark.parametrize(("out", "said"), [(".", "a folder; name a file"), ("a/b", "no folder")])
def test_what_cannot_be_written_is_refused_before_measuring(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, out: str, said: str
) -> None:
    monkeypatch.setattr("benchmarks.collectives.measure_profile", pytest.fail)
    with pytest.raises(UsageError, match=said):
        main(out=tmp_path / out)


def test_a_sweep_needs_a_profile_of_each_link_it_has(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no records"):
        missing_profiles(tmp_path)
    for link in (100.0, 1000.0, None):
        append_record(tmp_path, record(case(strategy="ddp", world_size=2, link_mbit_per_s=link)))
    append_record(tmp_path, record(case(strategy="single")))
    assert missing_profiles(tmp_path) == {
        tmp_path / "profile_2_ranks_100_mbit.json": (2, 100.0),
        tmp_path / "profile_2_ranks_1000_mbit.json": (2, 1000.0),
        tmp_path / "profile_2_ranks.json": (2, None),
    }
    (tmp_path / "profile_anything.json").write_text(profile(link=100.0).model_dump_json())
    assert len(missing_profiles(tmp_path)) == 2


@pytest.mark.long
@pytest.mark.distributed
@pytest.mark.timeout(300)
@pytest.mark.parametrize("rate_mbit_per_s", [50, 200])
def test_gloo_gets_the_rate_of_the_link(rate_mbit_per_s: float) -> None:
    if reason := links_unavailable():
        pytest.skip(reason)
    found = measure_profile(world_size=2, link_mbit_per_s=rate_mbit_per_s)
    for kind, curve in found.collectives.items():
        bus = curve.bytes_per_s * bus_factor(kind, 2) * 8 / 1e6
        assert bus <= rate_mbit_per_s
    # On two ranks an all-reduce sends its payload once; headers take a twentieth of the rate.
    assert found.collectives["all_reduce"].bytes_per_s * 8 / 1e6 > 0.85 * rate_mbit_per_s


@pytest.mark.long
@pytest.mark.distributed
@pytest.mark.timeout(300)
def test_the_command_writes_what_it_shows(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "profile.json"
    main(out=out)
    said = capsys.readouterr().out
    found = read_profile(out)
    assert (found.world_size, found.link_mbit_per_s) == (2, None)
    for kind, curve in found.collectives.items():
        assert f"{kind}: {curve.latency_s * 1e6:,.0f} us" in said
        assert len(curve.points) > 3
    assert found.matmul_flops_per_s > 1e8
