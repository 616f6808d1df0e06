"""The worker's exit code, left where its launcher finds it: torch's launcher only knows its own."""

import os
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

_FOLDER = "SCALING_TOOLKIT_EXIT_CODES"


def leave_exit_code(code: int) -> None:
    """Note how this worker ends, unless another of the same start has ended before it."""
    folder, start = os.environ.get(_FOLDER), os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
    if folder is None or code == 0:
        return
    # A launcher that is gone has taken its folder along; the first code is the cause of the others.
    with suppress(OSError), (Path(folder) / start).open("x") as file:
        file.write(str(code))


@contextmanager
def gathering_exit_codes() -> Iterator[Callable[[], int | None]]:
    """Have workers started meanwhile leave their codes; yields the first of the latest start."""

    def latest() -> int | None:
        starts = sorted(Path(folder).iterdir(), key=lambda path: int(path.name))
        return int(starts[-1].read_text()) if starts else None

    with tempfile.TemporaryDirectory(prefix="exit-codes-") as folder:
        os.environ[_FOLDER] = folder
        yield latest
