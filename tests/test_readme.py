"""README is short, and its floor plan and the list of faults name what is there."""

import re
from pathlib import Path

import pytest

from toolkit.config import load_run_config
from toolkit.engines.strategies import Accumulation, Strategy
from toolkit.memory.hardware import GIB
from toolkit.program.readers.traffic import read_traffic
from toolkit.program.settings import settings_of_run
from toolkit.program.step import estimate_peak, write_step

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text()
PLAN = re.findall(r"^( *)(\w+)/", README.split("## Floor plan")[1].split("```")[1], re.MULTILINE)
CHOICES = re.findall(
    r"^\| [^|]* \| ([^|]*) \| `(\w+)` \| ([^|]*\d) \| ([^|]*) \|$", README, re.MULTILINE
)
MOST_WORDS = 1_200
GENERATED = {"build", "data", "dist", "runs", "__pycache__"}


def test_it_is_read_in_five_minutes() -> None:
    assert len(README.split()) <= MOST_WORDS


def test_the_floor_plan_names_every_folder_and_nothing_else() -> None:
    top = {name for indent, name in PLAN if not indent}
    inside = {name for indent, name in PLAN if indent}
    assert inside == {path.parent.name for path in (ROOT / "toolkit").glob("*/__init__.py")}
    folders = {path.name for path in ROOT.iterdir() if path.is_dir() and "." not in path.name}
    assert top == folders - GENERATED


@pytest.mark.parametrize(("strategies", "mode", "held", "sent"), CHOICES)
def test_the_figures_of_the_choice_are_computed(
    strategies: str, mode: Accumulation, held: str, sent: str
) -> None:
    assert len(CHOICES) == 7
    figures = [figures_of(name, mode) for name in re.findall(r"`(\w+)`", strategies)]
    assert held == " or ".join(f"{peak / GIB:.1f}" for peak, _ in figures)
    assert sent == " or ".join(f"{payload / GIB:.1f}" for _, payload in figures)


def figures_of(strategy: Strategy, mode: Accumulation) -> tuple[int, int]:
    """The peak and the payload of one rank; a ring sends the payload of an all-reduce twice."""
    config = load_run_config(ROOT / "configs/train/gpt2-xl.yaml", ["batch.micro_batch_size=16"])
    ranks = 1 if strategy == "single" else 8
    replicas = 2 if strategy == "hsdp" else 1
    settings = settings_of_run(
        config, strategy, world_size=ranks, replicas=replicas, accumulation=mode
    )
    traffic = read_traffic(write_step(settings), settings)
    payload = sum(each.bytes * (1 + (kind == "all_reduce")) for kind, each in traffic.items())
    return estimate_peak(settings).total, payload


def test_every_fault_of_the_list_has_its_test() -> None:
    listed = set(re.findall(r"`(test_\w+)`", (ROOT / "tests" / "faults.md").read_text()))
    code = "".join(path.read_text() for path in (ROOT / "tests").rglob("test_*.py"))
    assert listed - set(re.findall(r"def (test_\w+)\(", code)) == set()
    assert listed


def test_nothing_is_left_to_fill_in() -> None:
    documents = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").glob("*.md")]
    assert [path for path in documents if re.search(r"@[A-Z]+@|TODO", path.read_text())] == []
