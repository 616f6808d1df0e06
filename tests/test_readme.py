"""What the README and the list of faults name is there, and every module is named."""

import re
from pathlib import Path

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text()
PLAN = README.split("## Floor plan")[1].split("```")[1]
# Rooms that the plan describes as a whole.
WHOLE = ("config",)


def test_the_floor_plan_names_every_module() -> None:
    modules = [p for p in (ROOT / "toolkit").rglob("*.py") if p.name != "__init__.py"]
    named = set(re.findall(r"\w+\.py", PLAN))
    assert [p for p in modules if p.parent.name not in WHOLE and p.name not in named] == []


def test_the_floor_plan_names_nothing_else() -> None:
    folders = ("toolkit", "launch", "benchmarks")
    files = {p.name for folder in folders for p in (ROOT / folder).rglob("*.*")}
    named = set(re.findall(r"\w+\.(?:py|sh|sbatch)", PLAN))
    assert named - files == set()


def test_every_fault_of_the_list_has_its_test() -> None:
    listed = set(re.findall(r"`(test_\w+)`", (ROOT / "tests" / "faults.md").read_text()))
    code = "".join(path.read_text() for path in (ROOT / "tests").rglob("test_*.py"))
    assert listed - set(re.findall(r"def (test_\w+)\(", code)) == set()
    assert listed


def test_nothing_is_left_to_fill_in() -> None:
    assert not re.search(r"@[A-Z]+@|TODO", README)
