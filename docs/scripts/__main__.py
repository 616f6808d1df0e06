"""`python -m docs.scripts` writes every generated file of docs/; the tests hold them current."""

from collections.abc import Callable
from pathlib import Path

from docs.scripts import configuration, floor_plan

DOCS = Path(__file__).parents[1]
GENERATED: dict[str, Callable[[], str]] = {
    "configuration.md": configuration.page,
    "floor_plan.md": floor_plan.page,
}

if __name__ == "__main__":
    for name, page in GENERATED.items():
        (DOCS / name).write_text(page())
