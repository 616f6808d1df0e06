"""Generated files of docs/ are what their scripts write today."""

import pytest

from docs.scripts.__main__ import DOCS, GENERATED


@pytest.mark.parametrize("name", GENERATED)
def test_it_is_current(name: str) -> None:
    hint = f"docs/{name} is out of date; write it again with `python -m docs.scripts`"
    assert (DOCS / name).read_text() == GENERATED[name](), hint
