"""How the package's folders hang together: one-way, and without the benchmarks."""

import ast
from collections.abc import Iterator
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parent.parent / "toolkit"


def imported(path: Path) -> Iterator[str]:
    """Yield the dotted names that a file imports, inside functions as well."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (name.name for name in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module == "toolkit":
            yield from (f"toolkit.{name.name}" for name in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield node.module or ""


def needs(package: Path) -> dict[str, set[str]]:
    """Return for each folder, and each module beside them, which others it imports."""
    found: dict[str, set[str]] = {}
    for path in package.rglob("*.py"):
        own = path.relative_to(package).parts[0].removesuffix(".py")
        names = (name.split(".") for name in imported(path))
        others = {words[1] for words in names if words[0] == "toolkit" and len(words) > 1}
        found.setdefault(own, set()).update(others - {own})
    return found


def test_no_folder_is_needed_by_what_it_needs() -> None:
    TopologicalSorter(needs(PACKAGE)).prepare()


def test_a_ring_of_folders_is_found(tmp_path: Path) -> None:
    """Also where one of the imports is inside a function."""
    for folder, text in (("a", "import toolkit.b.c"), ("b", "def f():\n    from toolkit import a")):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "c.py").write_text(text)
    with pytest.raises(CycleError):
        TopologicalSorter(needs(tmp_path)).prepare()


def test_the_package_does_without_the_benchmarks() -> None:
    roots = {name.split(".")[0] for path in PACKAGE.rglob("*.py") for name in imported(path)}
    assert roots & {"benchmarks", "tests"} == set()
