"""Functions and methods that are replaced for a while, and put back."""

from collections.abc import Callable
from functools import wraps
from typing import Any


class Patches:
    """What has been replaced, so that all of it can be put back."""

    def __init__(self) -> None:
        self._undo: list[tuple[Any, str, Any, Any]] = []

    def before(self, owner: Any, name: str, note: Callable[..., None]) -> None:
        """Call `note` with the arguments of every call of `owner.name`, before it."""
        original = getattr(owner, name)

        @wraps(original)
        def call(*arguments: Any, **settings: Any) -> Any:
            note(*arguments, **settings)
            return original(*arguments, **settings)

        self.replace(owner, name, call)

    def replace(self, owner: Any, name: str, replacement: Any) -> None:
        """Put `replacement` in the place of `owner.name`."""
        self._undo.append((owner, name, getattr(owner, name), replacement))
        setattr(owner, name, replacement)

    def remove(self) -> None:
        """Put everything back that nobody else has replaced since."""
        for owner, name, original, replacement in reversed(self._undo):
            if getattr(owner, name) is replacement:
                setattr(owner, name, original)
        self._undo.clear()
