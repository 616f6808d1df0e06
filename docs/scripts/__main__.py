"""`python -m docs.scripts` writes every generated file of docs/; the tests hold them current."""

from collections.abc import Callable
from pathlib import Path

from docs.scripts import configuration, floor_plan, pictures

DOCS = Path(__file__).parents[1]
GENERATED: dict[str, Callable[[], str]] = {
    "configuration.md": configuration.page,
    "floor_plan.md": floor_plan.page,
    "images/overview.svg": pictures.overview,
    "images/step.svg": pictures.step,
    "images/modes.svg": pictures.modes,
}

if __name__ == "__main__":
    for name, text in GENERATED.items():
        (DOCS / name).write_text(text())
