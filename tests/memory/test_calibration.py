import csv
from pathlib import Path
from statistics import median

import pytest

from toolkit.errors import UsageError
from toolkit.memory import calibration
from toolkit.memory.allocator import MeasuredPeak
from toolkit.memory.calibration import (
    CONTEXT_BYTES,
    PUBLIC_RUNS,
    RESERVED_OVER_ALLOCATED,
    Calibration,
    Measured,
    calibrate,
    calibration_file,
    load_calibrations,
    save_calibration,
)
from toolkit.memory.hardware import GIB, find_gpu, load_gpus
from toolkit.shipped import ROOT

DEVICE = "NVIDIA GeForce RTX 4090"


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


def of_a_run(gib: int, *, ratio: float = 1.2, device: str = DEVICE) -> Calibration:
    measured = Measured(
        run=f"runs/{gib}", allocated_bytes=gib * GIB, device=device, versions={"torch": "2.13.0"}
    )
    reserved = round(ratio * gib * GIB)
    return calibrate(reserved=reserved, device_total=reserved + GIB // 2, measured=measured)


def test_what_is_assumed_is_the_median_of_the_public_runs() -> None:
    with Path(calibration.__file__).with_name("reserved.csv").open() as file:
        ratios = [float(row["reserved"]) / float(row["allocated"]) for row in csv.DictReader(file)]
    assert round(median(ratios), 2) == RESERVED_OVER_ALLOCATED
    lowest, highest = min(ratios), max(ratios)
    assert f"{len(ratios)} public runs ({lowest:.2f} to {highest:.2f})" == PUBLIC_RUNS
    assert PUBLIC_RUNS in Calibration().describe()


def test_what_is_assumed_outside_the_allocator_is_the_median_of_what_was_reported() -> None:
    with Path(calibration.__file__).with_name("outside.csv").open() as file:
        rows = list(csv.DictReader(file))
    beyond = ("one more", "private pool", "all outside PyTorch's allocator, after")
    first = [float(row["gib"]) for row in rows if not row["what"].startswith(beyond)]
    assert (min(first), max(first)) == (0.33, 1.49)
    assert round(median(first)) == CONTEXT_BYTES / GIB
    page = (ROOT / "docs" / "memory.md").read_text()
    assert all(f"| {' | '.join(row.values())} |" in page for row in rows)


def test_a_run_on_a_gpu_shows_what_later_ones_need_on_such_a_gpu() -> None:
    found = of_a_run(10)
    assert (found.context_bytes, found.reserved_over_allocated) == (GIB // 2, 1.2)
    assert found.device_bytes(20 * GIB) == 24 * GIB + GIB // 2
    save_calibration(found)
    assert load_calibrations() == {DEVICE: found}
    assert not find_gpu("RTX 4090", load_calibrations()).holds(20 * GIB)
    save_calibration(of_a_run(11, ratio=1.0))
    assert find_gpu("RTX 4090", load_calibrations()).holds(20 * GIB)
    others = [gpu for gpu in load_gpus(load_calibrations()) if gpu.name != "RTX 4090"]
    assert {gpu.calibration for gpu in others} == {Calibration()}


def test_a_calibration_names_its_run_its_gpu_and_its_versions() -> None:
    save_calibration(of_a_run(10))
    words = load_calibrations()[DEVICE].describe()
    assert f"measured on {DEVICE} by runs/10 (10 GiB allocated, torch 2.13.0)" in words


def test_a_smaller_run_does_not_replace_a_larger_one() -> None:
    for gib in (4, 10, 9):
        save_calibration(of_a_run(gib))
    save_calibration(of_a_run(1, device="NVIDIA H200"))
    kept = load_calibrations()
    assert {device: found.measured.run for device, found in kept.items() if found.measured} == {
        DEVICE: "runs/10",
        "NVIDIA H200": "runs/1",
    }


def test_only_a_measured_peak_on_a_gpu_is_kept() -> None:
    MeasuredPeak(bytes=GIB).keep_calibration(run="runs/cpu", versions={})
    assert load_calibrations() == {}
    peak = MeasuredPeak(bytes=GIB, reserved=2 * GIB, device_total=3 * GIB, device=DEVICE)
    peak.keep_calibration(run="runs/gpu", versions={"torch": "2.13.0"})
    (found,) = load_calibrations().values()
    assert (found.context_bytes, found.reserved_over_allocated) == (GIB, 2.0)


@pytest.mark.parametrize(
    "text",
    [
        "null",
        "torn {",
        "a word",
        "[]",
        "",
        b"\xff",
        '{"NVIDIA H200": null}',
        '{"NVIDIA H200": {"context_bytes": "much"}}',
        '{"NVIDIA H200": {"context_bytes": 1, "reserved_over_allocated": NaN}}',
        '{"NVIDIA H200": {"context_bytes": 1, "reserved_over_allocated": 0.5}}',
        '{"NVIDIA H200": {"context_bytes": 1, "reserved_over_allocated": 1e308}}',
        '{"context_bytes": 1073741824, "reserved_over_allocated": 1.1}',
    ],
)
def test_a_damaged_file_is_a_sentence_until_the_next_run_replaces_it(text: str | bytes) -> None:
    calibration_file().parent.mkdir(parents=True)
    calibration_file().write_bytes(text if isinstance(text, bytes) else text.encode())
    with pytest.raises(UsageError, match=r"memory\.json: holds no calibration .*; delete it"):
        load_calibrations()
    save_calibration(of_a_run(10))
    assert load_calibrations() == {DEVICE: of_a_run(10)}


def test_a_cache_that_cannot_be_written_is_no_error(tmp_path: Path) -> None:
    (tmp_path / "cache").write_text("a file")
    save_calibration(of_a_run(10))
    assert load_calibrations() == {}
