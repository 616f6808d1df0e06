"""Historic faults in scripts of our own, each named with its line, and clean ones without any.

A fault's file is named after its finding; what follows `__` is the library or the release.
"""

import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.audit.launches import HERE, ROOT
from toolkit.audit.report import Report, build_report

HEAVY = ("deepspeed", "DeepSpeedPlugin", "transformers", "lightning", "trainer_parts")
FAULTS = sorted((HERE / "faults").glob("*.py"))
CLEAN = sorted((HERE / "clean").glob("*.py"))
RELEASES = sorted((HERE / "releases").glob("*.py"))


def imports(script: Path, *names: str) -> bool:
    lines = [line for line in script.read_text().splitlines() if "import " in line]
    return any(name in line for line in lines for name in names)


def is_heavy(script: Path) -> bool:
    """Whether it imports a library that takes seconds."""
    return imports(script, *HEAVY)


def can_run(script: Path) -> bool:
    return find_spec("lightning") is not None or not imports(script, "lightning")


def marked(scripts: list[Path]) -> list[object]:
    without = pytest.mark.skip(reason="lightning is installed by `make test-museum`")
    return [
        pytest.param(
            script,
            id=script.stem,
            marks=[
                *([pytest.mark.long] if is_heavy(script) else []),
                *([] if can_run(script) else [without]),
            ],
        )
        for script in scripts
    ]


def watch_all(out: Path, scripts: list[Path], *packages: Path) -> dict[str, Report]:
    """Return the reports of scripts, from one launch with `packages` in front of all others."""
    environment = {**os.environ, "HF_HOME": str(out / "home"), "OMP_NUM_THREADS": "1"}
    environment["PYTHONPATH"] = os.pathsep.join(map(str, [*packages, ROOT]))
    if packages:  # a release compiles its own extension, which must not replace another's
        environment["TORCH_EXTENSIONS_DIR"] = str(packages[0] / "extensions")
    command = [sys.executable, str(HERE / "warm.py"), str(out), *map(str, scripts)]
    subprocess.run(command, env=environment, check=True, timeout=280)
    return {
        script.stem: build_report(folder, int((folder / "code").read_text()))
        for script in scripts
        for folder in [out / script.stem]
    }


@pytest.fixture(scope="module")
def quick(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Report]:
    scripts = [script for script in FAULTS + CLEAN if not is_heavy(script)]
    return watch_all(tmp_path_factory.mktemp("quick"), scripts)


@pytest.fixture(scope="module")
def heavy(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Report]:
    scripts = [script for script in FAULTS + CLEAN if is_heavy(script) and can_run(script)]
    return watch_all(tmp_path_factory.mktemp("heavy"), scripts)


def report_of(script: Path, request: pytest.FixtureRequest) -> Report:
    reports: dict[str, Report] = request.getfixturevalue("heavy" if is_heavy(script) else "quick")
    return reports[script.stem]


def check_fault(report: Report, script: Path) -> None:
    found = {finding.name: finding.where for finding in report.findings}
    name = script.stem.partition("__")[0]
    assert name in found, found
    lines = script.read_text().splitlines()
    (line,) = [number for number, text in enumerate(lines, 1) if text.endswith("# FAULT")]
    assert found[name] == f"{script}:{line}"


@pytest.mark.distributed
@pytest.mark.parametrize("script", marked(FAULTS))
def test_a_fault_is_named_with_its_line(script: Path, request: pytest.FixtureRequest) -> None:
    check_fault(report_of(script, request), script)


@pytest.mark.distributed
@pytest.mark.parametrize("script", marked(CLEAN))
def test_a_clean_script_has_no_finding(script: Path, request: pytest.FixtureRequest) -> None:
    report = report_of(script, request)
    assert len(report.steps) == 3
    assert {step.division for step in report.steps} == {"averaged"}
    assert [finding.to_json() for finding in report.findings] == []


@pytest.mark.distributed
@pytest.mark.parametrize(
    ("name", "mode", "asked"),
    [
        ("ddp_no_sync", "replicated", "replicated"),
        ("fsdp1", "sharded", None),
        ("fsdp1_no_sync", "replicated", "replicated"),
        ("fsdp2", "sharded", None),
        ("fsdp2_hybrid_deferred", "deferred", None),
    ],
)
def test_the_mode_that_is_effective_stands_beside_the_one_asked_for(
    name: str, mode: str, asked: str | None, quick: dict[str, Report]
) -> None:
    found = {(step.mode, step.asked) for step in quick[name].steps}
    assert found == {(mode, asked)}


def test_clipping_inside_an_updates_closure_is_seen(quick: dict[str, Report]) -> None:
    clips = [step["clips"] for rank in quick["closure"].ranks for step in rank["steps"]]
    assert [[clip["max_norm"] for clip in of_step] for of_step in clips] == [[0.1]] * 6
    assert all(of_step[0]["norm"] > 0.1 for of_step in clips)


@pytest.mark.long
@pytest.mark.distributed
@pytest.mark.parametrize("script", RELEASES, ids=lambda script: script.stem)
def test_a_release_with_the_fault_is_caught(script: Path, tmp_path: Path) -> None:
    """`make test-museum` installs the releases."""
    package, _, version = script.stem.partition("__")[2].partition("_")
    release = f"{package}=={version.replace('_', '.')}"
    folder = ROOT / ".venv" / "museum" / release / "site-packages"
    if not folder.exists():
        pytest.skip(f"{release} is installed by `make test-museum`")
    report = watch_all(tmp_path, [script], folder)[script.stem]
    assert f"{package}=={report.ranks[0]['versions'][package]}" == release
    check_fault(report, script)
