"""Real collectives over a link: its rate, as seen by gloo."""

from pathlib import Path

import pytest
from typer import Typer
from typer.testing import CliRunner

from benchmarks.collectives import main, measure_profile
from benchmarks.links import links_unavailable
from benchmarks.machine_profile import bus_factor, read_profile


def run(*arguments: str) -> tuple[int, str]:
    app = Typer()
    app.command()(main)
    result = CliRunner().invoke(app, list(arguments))
    return result.exit_code, result.output


def test_a_link_of_three_ranks_is_refused() -> None:
    code, said = run("--world-size", "3", "--link-mbit", "100")
    assert (code, said) == (2, "error: a link joins 2 ranks, not 3\n")


@pytest.mark.long
@pytest.mark.distributed
@pytest.mark.timeout(300)
@pytest.mark.parametrize("rate_mbit_per_s", [50, 200])
def test_gloo_gets_the_rate_of_the_link(rate_mbit_per_s: float) -> None:
    if reason := links_unavailable():
        pytest.skip(reason)
    profile = measure_profile(world_size=2, link_mbit_per_s=rate_mbit_per_s)
    for kind, curve in profile.collectives.items():
        bus = curve.bytes_per_s * bus_factor(kind, 2) * 8 / 1e6
        assert bus <= rate_mbit_per_s
    # On two ranks an all-reduce sends its payload once; headers take a twentieth of the rate.
    assert profile.collectives["all_reduce"].bytes_per_s * 8 / 1e6 > 0.85 * rate_mbit_per_s


@pytest.mark.long
@pytest.mark.distributed
@pytest.mark.timeout(300)
def test_the_command_writes_what_it_shows(tmp_path: Path) -> None:
    out = tmp_path / "profile.json"
    code, said = run("--out", str(out))
    assert code == 0
    profile = read_profile(out)
    assert (profile.world_size, profile.link_mbit_per_s) == (2, None)
    for kind, curve in profile.collectives.items():
        assert f"{kind}: {curve.latency_s * 1e6:,.0f} us" in said
        assert len(curve.points) > 3
    assert profile.matmul_flops_per_s > 1e8
