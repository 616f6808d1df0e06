"""Where in the audited script something happens, and what the script's own words ask for."""

import ast
import inspect
import sys
import sysconfig
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from types import FrameType

_PATHS = ("stdlib", "platstdlib", "purelib", "platlib")
_LIBRARIES = tuple({f"{Path(sysconfig.get_path(name)).resolve()}/" for name in _PATHS})
_OURS = f"{Path(__file__).parent.resolve()}/"

HOLDING_WORDS = {
    "no_sync",
    "no_backward_sync",
    "set_requires_gradient_sync",
    "require_backward_grad_sync",
}
"""What asks an engine to hold gradients back: DDP and FSDP1, Fabric, FSDP2, DDP's own switch."""


def their_frames() -> Iterator[FrameType]:
    """Yield the frames of the calling thread that are the script's own, the innermost first.

    The file that was started counts as the script's wherever it is installed.
    """
    main = getattr(sys.modules.get("__main__"), "__file__", None)
    frame = inspect.currentframe()
    while frame is not None:
        name = frame.f_code.co_filename
        if name == main or not (name.startswith("<") or _is_library(name)):
            yield frame
        frame = frame.f_back


@cache
def _is_library(name: str) -> bool:
    path = str(Path(name).resolve())
    return path.startswith((*_LIBRARIES, _OURS)) or "/site-packages/" in path


def their_line() -> str | None:
    """Return the innermost line of the script on the stack, as `file:line`."""
    frame = next(their_frames(), None)
    return None if frame is None else f"{_resolved(frame.f_code.co_filename)}:{frame.f_lineno}"


@cache
def _resolved(name: str) -> Path:
    return Path(name).resolve()


def holding_line() -> str | None:
    """Return a line by which the files on the stack ask to hold gradients back, or None.

    A line is enough, whatever the object it is called on: one without such a method, behind a
    `hasattr`, is a fault to be found.
    """
    for frame in their_frames():
        if line := _holding_line(frame.f_code.co_filename):
            return line
    return None


@cache
def _holding_line(file: str) -> str | None:
    try:
        tree = ast.parse(Path(file).read_text())
    except (OSError, SyntaxError, ValueError):
        return None
    for node in ast.walk(tree):
        word = getattr(node, "attr", None) or getattr(node, "value", None)
        if isinstance(node, ast.Attribute | ast.Constant) and word in HOLDING_WORDS:
            return f"{Path(file).resolve()}:{node.lineno}"
    return None
