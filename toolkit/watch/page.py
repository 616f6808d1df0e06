"""One self-contained page: markup, style, script and data in a file, and nothing from elsewhere."""

import base64
import hashlib
import json
from collections.abc import Sequence
from pathlib import Path
from string import Template
from typing import Any

from toolkit.errors import UsageError

_FOLDER = Path(__file__).parent / "page"
_SCRIPTS = ("base", "working", "lesson", "dials", "main")
LARGEST_PAGE = 1_000_000
"""Bytes; a page is to be mailed and committed."""


def write_page(data: dict[str, Any], out: Path, *, title: str) -> None:
    """Write the page of some data, which is in it as JSON and never as markup.

    The page's own policy lets it run this script alone and load nothing.

    Raises:
        UsageError: the page is too large, or cannot be written.
    """
    script = "".join((_FOLDER / f"{name}.js").read_text() for name in _SCRIPTS)
    style = (_FOLDER / "style.css").read_text()
    text = Template((_FOLDER / "page.html").read_text()).substitute(
        title=_as_text(title),
        style=style,
        script=script,
        style_hash=_hash(style),
        script_hash=_hash(script),
        data=_as_json(data),
    )
    if len(text.encode()) > LARGEST_PAGE:
        raise UsageError(
            f"the page would have {len(text.encode()):,} bytes, more than {LARGEST_PAGE:,}; "
            "record fewer ranks, micro-steps or steps"
        )
    try:
        out.write_text(text)
    except OSError as error:
        raise UsageError(f"--out {out}: {error.strerror}") from None


def _as_json(data: dict[str, Any]) -> str:
    """Return JSON that no markup can end: `<` is written as an escape."""
    return json.dumps(_finite(data), separators=(",", ":"), allow_nan=False).replace("<", "\\u003c")


def _finite(value: Any) -> Any:
    """Return the value with null for what JSON has no number for."""
    if isinstance(value, dict):
        return {key: _finite(inner) for key, inner in value.items()}
    if isinstance(value, Sequence) and not isinstance(value, str):
        return [_finite(inner) for inner in value]
    if isinstance(value, float) and value - value != 0.0:
        return None
    return value


def _as_text(text: str) -> str:
    from html import escape

    return escape(text)


def _hash(text: str) -> str:
    return base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
