"""README is short, and its floor plan and the list of faults name what is there."""

import re
from pathlib import Path

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text()
PLAN = re.findall(r"^( *)(\w+)/", README.split("## Floor plan")[1].split("```")[1], re.MULTILINE)
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


def test_every_fault_of_the_list_has_its_test() -> None:
    listed = set(re.findall(r"`(test_\w+)`", (ROOT / "tests" / "faults.md").read_text()))
    code = "".join(path.read_text() for path in (ROOT / "tests").rglob("test_*.py"))
    assert listed - set(re.findall(r"def (test_\w+)\(", code)) == set()
    assert listed


def test_nothing_is_left_to_fill_in() -> None:
    documents = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").glob("*.md")]
    assert [path for path in documents if re.search(r"@[A-Z]+@|TODO", path.read_text())] == []
