"""What is in the sdist and in the wheel."""

import tarfile
import zipfile
from pathlib import Path

import pytest
import yaml

from tests.wheel.conftest import ROOT
from toolkit import __version__


@pytest.fixture(scope="module")
def packed(wheel: Path) -> dict[str, bytes]:
    with zipfile.ZipFile(wheel) as archive:
        return {name: archive.read(name) for name in archive.namelist()}


def test_the_sdist_holds_all_sources(sources: Path, sdist: Path) -> None:
    with tarfile.open(sdist) as archive:
        members = {member.name.partition("/")[2] for member in archive if member.isfile()}
    files = {str(path.relative_to(sources)) for path in sources.rglob("*") if path.is_file()}
    wanted = {name for name in files if ".egg-info" not in name}
    assert {"tests/wheel/conftest.py", "configs/train/demo.yaml", "Makefile"} <= wanted
    assert wanted - members == set()


@pytest.mark.parametrize("folder", ["configs", "launch"])
def test_the_wheel_ships_the_folders_that_people_read(
    sources: Path, packed: dict[str, bytes], folder: str
) -> None:
    files = [path for path in (sources / folder).rglob("*") if path.is_file()]
    assert files
    for path in files:
        assert packed[f"toolkit/{path.relative_to(sources)}"] == path.read_bytes()


def test_the_wheel_holds_the_package_alone(packed: dict[str, bytes]) -> None:
    metadata = f"scaling_toolkit-{__version__}.dist-info"
    assert {name.partition("/")[0] for name in packed} == {"toolkit", metadata}
    for name in ("LICENSE", "NOTICE", "toolkit/data/gpt2_vocabulary/LICENSE"):
        assert packed[f"{metadata}/licenses/{name}"] == (ROOT / name).read_bytes()


def test_no_engine_but_pytorchs_is_a_hard_requirement(packed: dict[str, bytes]) -> None:
    metadata = packed[f"scaling_toolkit-{__version__}.dist-info/METADATA"].decode()
    required = [line for line in metadata.splitlines() if line.startswith("Requires-Dist: ")]
    engine = [line for line in required if line.split()[1].startswith(("deepspeed", "ninja"))]
    assert len(engine) == 2
    assert all(line.endswith('; extra == "deepspeed"') for line in engine)


def test_every_document_speaks_of_the_same_version() -> None:
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    assert str(citation["version"]) == __version__
    assert f"\n## [{__version__}]" in (ROOT / "CHANGELOG.md").read_text()
