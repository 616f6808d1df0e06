from pathlib import Path

import pytest

from toolkit.memory.calibration import (
    Calibration,
    calibrate,
    calibration_file,
    load_calibration,
    save_calibration,
)
from toolkit.memory.hardware import GIB, find_gpu


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


def test_a_run_on_a_gpu_says_what_later_ones_need() -> None:
    found = calibrate(allocated=10 * GIB, reserved=12 * GIB, device_total=13 * GIB)
    assert found == Calibration(GIB, 1.2)
    assert found.device_bytes(20 * GIB) == 25 * GIB
    save_calibration(found)
    assert load_calibration() == found
    assert not find_gpu("RTX 4090").holds(20 * GIB)
    save_calibration(Calibration(GIB, 1.0))
    assert find_gpu("RTX 4090").holds(20 * GIB)


def test_without_a_calibration_constants_are_used() -> None:
    assert load_calibration() == Calibration()
    calibration_file().parent.mkdir(parents=True)
    calibration_file().write_text("torn {")
    assert load_calibration() == Calibration()


def test_a_cache_that_cannot_be_written_is_no_error(tmp_path: Path) -> None:
    (tmp_path / "cache").write_text("a file")
    save_calibration(Calibration())
    assert load_calibration() == Calibration()
