"""Historic faults in scripts of our own, each named with its line, and clean ones without any."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from toolkit.audit.report import Report, build_report

HERE = Path(__file__).parent
FAULTS = sorted((HERE / "faults").glob("*.py"))
CLEAN = sorted((HERE / "clean").glob("*.py"))


@pytest.fixture(scope="module")
def reports(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Report]:
    """The reports of all scripts, from one launch."""
    out = tmp_path_factory.mktemp("museum")
    environment = {**os.environ, "HF_HOME": str(out / "home"), "OMP_NUM_THREADS": "1"}
    environment["PYTHONPATH"] = str(HERE.parent.parent)
    scripts = [str(script) for script in FAULTS + CLEAN]
    command = [sys.executable, str(HERE / "warm.py"), str(out), *scripts]
    subprocess.run(command, env=environment, check=True, timeout=280)
    folders = [out / script.stem for script in FAULTS + CLEAN]
    return {
        folder.name: build_report(folder, int((folder / "code").read_text())) for folder in folders
    }


@pytest.mark.distributed
@pytest.mark.parametrize("script", FAULTS, ids=lambda script: script.stem)
def test_a_fault_is_named_with_its_line(reports: dict[str, Report], script: Path) -> None:
    found = {finding.name: finding.where for finding in reports[script.stem].findings}
    name = script.stem.partition("__")[0]
    assert name in found, found
    lines = script.read_text().splitlines()
    marked = [number for number, line in enumerate(lines, 1) if line.endswith("# FAULT")]
    if marked:
        assert found[name] == f"{script}:{marked[0]}"


@pytest.mark.distributed
@pytest.mark.parametrize("script", CLEAN, ids=lambda script: script.stem)
def test_a_clean_script_has_no_finding(reports: dict[str, Report], script: Path) -> None:
    report = reports[script.stem]
    assert len(report.steps) == 3
    assert [finding.to_json() for finding in report.findings] == []
