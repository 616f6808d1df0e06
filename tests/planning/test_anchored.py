"""A measured run scales a GPU's computation until the model gives its step."""

from pathlib import Path
from types import SimpleNamespace

import pytest

from tests.planning.test_search import cluster_of, search_of
from toolkit.errors import UsageError
from toolkit.planning import anchored as module
from toolkit.planning.anchored import anchored
from toolkit.planning.answer import PlanRow, find_answer
from toolkit.planning.cluster import Cluster

CLUSTER = cluster_of("H100-80")
SEARCH = search_of(strategies=("fsdp2",))


@pytest.fixture(scope="module")
def best() -> PlanRow:
    found = find_answer(SEARCH, CLUSTER).best
    assert found is not None
    return found


@pytest.fixture
def measured(best: PlanRow, monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """A run of the best configuration that took twice as long as predicted."""
    run = SimpleNamespace(
        summary={"step_s": 2 * best.order_s},
        launch={"strategy": "fsdp2"},
        environment={"devices": {"names": ["NVIDIA H100 80GB HBM3"]}},
    )
    monkeypatch.setattr(module, "read_run", lambda path: run)
    monkeypatch.setattr(module, "settings_of_record", lambda run: best.settings)
    return run


def on(speed: module.AnchoredSpeed) -> Cluster:
    return Cluster(**{**vars(CLUSTER), "speed": speed})


def test_the_anchor_itself_is_predicted_as_measured(
    best: PlanRow, measured: SimpleNamespace
) -> None:
    speed = anchored(CLUSTER, Path("run"))
    assert speed.peak_flops == best.cluster.peak_flops
    assert speed.anchor.factor > 1.5
    rows = find_answer(SEARCH, on(speed)).rows
    same = next(row for row in rows if row.settings == best.settings)
    assert same.order_s == pytest.approx(2 * best.order_s, rel=1e-6)


def test_a_run_of_another_device_or_without_a_step_is_refused(measured: SimpleNamespace) -> None:
    measured.environment["devices"]["names"] = ["Tesla T4"]
    with pytest.raises(UsageError, match="ran on Tesla T4, not on H100-80"):
        anchored(CLUSTER, Path("run"))
    measured.summary = None
    with pytest.raises(UsageError, match="no run with a measured step"):
        anchored(CLUSTER, Path("run"))
