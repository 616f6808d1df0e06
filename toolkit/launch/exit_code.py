"""The worker's exit code, left where its launcher finds it: torch's launcher only knows its own."""

import os
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NoReturn

_FOLDER = "SCALING_TOOLKIT_EXIT_CODES"


def leave_exit_code(code: int) -> None:
    """Note how this worker ends, unless another of the same start has ended before it."""
    folder, start = os.environ.get(_FOLDER), os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
    if folder is None or code == 0:
        return
    # A launcher that is gone has taken its folder along; the first code is the cause of the others.
    with suppress(OSError), (Path(folder) / start).open("x") as file:
        file.write(str(code))


def end_process(code: int) -> NoReturn:
    """End at once, without taking the interpreter down first.

    A thread of gloo may just be dropping its last reference to a tensor, for which it needs the
    interpreter's lock; a process that is being taken down aborts on that (torch 2.13, one exit in
    some twelve of four processes on two busy cores).
    """
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError):
            stream.flush()
    leave_exit_code(code)
    os._exit(code)


@contextmanager
def gathering_exit_codes() -> Iterator[Callable[[], int | None]]:
    """Have workers started meanwhile leave their codes; yields the first of the latest start."""

    def latest() -> int | None:
        starts = sorted(Path(folder).iterdir(), key=lambda path: int(path.name))
        return int(starts[-1].read_text()) if starts else None

    with tempfile.TemporaryDirectory(prefix="exit-codes-") as folder:
        os.environ[_FOLDER] = folder
        yield latest
