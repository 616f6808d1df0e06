"""The page of all modules: each with the first sentence of its own docstring."""

import ast
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]

_INTRODUCTION = """\
# Every module

Each line is the first of the module's own docstring. [Architecture](architecture.md) explains how
they hang together.
"""


def page() -> str:
    """Return docs/floor_plan.md."""
    return "\n".join([_INTRODUCTION, *_parts()])


def _parts() -> Iterator[str]:
    for top in ("toolkit", "benchmarks"):
        folders = {path.parent for path in (ROOT / top).rglob("*.py")}
        for folder in sorted(folders):
            modules = sorted(path for path in folder.glob("*.py") if path.stem != "__init__")
            if modules:
                yield f"## `{folder.relative_to(ROOT)}/`\n"
                yield from _about(folder / "__init__.py")
                yield "| module | what is in it |\n| --- | --- |"
                rows = (f"| `{path.name}` | {_first_line(path)} |" for path in modules)
                yield "\n".join(rows) + "\n"


def _about(package: Path) -> Iterator[str]:
    if package.is_file():
        yield f"{_first_line(package)}\n"


def _first_line(path: Path) -> str:
    docstring = ast.get_docstring(ast.parse(path.read_text())) or ""
    return docstring.partition("\n\n")[0].replace("\n", " ").replace("|", "\\|")
