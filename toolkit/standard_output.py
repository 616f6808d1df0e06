"""Standard output that cannot be written: one sentence, or silence where nobody reads on."""

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stdout
from typing import Any

from toolkit.errors import ReaderGone, ToolkitError, UsageError


@contextmanager
def checked_stdout() -> Iterator[None]:
    """Write all that is printed inside, to the last byte.

    Raises:
        UsageError: it cannot be written, for example on a full disk.
        ReaderGone: the program at the other end of the pipe has ended.
    """
    output = _Output(sys.stdout)
    with redirect_stdout(output):
        try:
            yield
        finally:
            output.flush()


class _Output:
    """A stream that cannot be written raises errors of ours, again at each further attempt.

    An OSError does not show that it came from here; Click swallows one when it tries a stream out,
    and ends the process itself, as Rich does, when a pipe breaks.
    """

    def __init__(self, stream: Any) -> None:
        self._stream = stream
        self._error: ToolkitError | None = None

    def write(self, text: str) -> Any:
        return self._attempt(self._stream.write, text)

    def flush(self) -> None:
        self._attempt(self._stream.flush)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def _attempt(self, call: Callable[..., Any], *arguments: Any) -> Any:
        if self._error is None:
            try:
                return call(*arguments)
            except BrokenPipeError:
                self._error = ReaderGone()
            except OSError as error:
                self._error = UsageError(f"standard output cannot be written: {error.strerror}")
            # What the stream still holds is written when the interpreter ends.
            os.dup2(os.open(os.devnull, os.O_WRONLY), self._stream.fileno())
        raise self._error
