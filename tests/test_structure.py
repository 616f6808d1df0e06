"""How the package's folders hang together: one-way, and without the benchmarks."""

import ast
from collections.abc import Iterator
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

from toolkit.engines.strategies import STRATEGIES

ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "toolkit"
LONGEST_FILE = 300
LONGEST_FUNCTION = 50


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


def too_long(path: Path) -> Iterator[str]:
    """Yield a file, and those of its functions, that nobody reads on a screen or two.

    A function counts from its first statement on: a command's options are no code to follow.
    """
    text = path.read_text()
    if text.count("\n") > LONGEST_FILE:
        yield f"{path}"
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            first = node.body[1:] if ast.get_docstring(node) else node.body
            if first and (node.end_lineno or 0) - first[0].lineno >= LONGEST_FUNCTION:
                yield f"{path}: {node.name}"


@pytest.mark.parametrize("folder", ["toolkit", "benchmarks", "launch", "docs", "examples"])
def test_files_and_functions_are_short(folder: str) -> None:
    assert [line for path in (ROOT / folder).rglob("*.py") for line in too_long(path)] == []


def test_a_long_function_and_a_long_file_are_found(tmp_path: Path) -> None:
    body = "    x = 1\n" * (LONGEST_FUNCTION + 1)
    (tmp_path / "function.py").write_text(f"def f():\n{body}")
    (tmp_path / "file.py").write_text("x = 1\n" * (LONGEST_FILE + 1))
    assert [*too_long(tmp_path / "function.py")] == [f"{tmp_path / 'function.py'}: f"]
    assert [*too_long(tmp_path / "file.py")] == [f"{tmp_path / 'file.py'}"]


KNOW_THE_ENGINES = {"engines", "launch", "program", "configs"}


def branches_on_a_strategy(path: Path) -> Iterator[str]:
    """Yield the lines that compare something with a strategy's name."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Compare | ast.MatchValue):
            constants = [n.value for n in ast.walk(node) if isinstance(n, ast.Constant)]
            if set(map(str, constants)) & set(STRATEGIES):
                yield f"{path}, line {node.lineno}"


def test_only_the_engines_own_folders_ask_which_strategy_it_is() -> None:
    files = [
        path
        for path in PACKAGE.rglob("*.py")
        if path.relative_to(PACKAGE).parts[0] not in KNOW_THE_ENGINES
    ]
    assert [line for path in files for line in branches_on_a_strategy(path)] == []


def test_a_branch_on_a_strategy_is_found(tmp_path: Path) -> None:
    file = tmp_path / "branch.py"
    file.write_text("def f(name):\n    return name in ('ddp', 'other')\n")
    assert [*branches_on_a_strategy(file)] == [f"{file}, line 2"]
