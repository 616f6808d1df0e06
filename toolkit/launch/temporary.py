"""A temporary folder that is removed even where the process that made it is killed."""

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import mkdtemp

# Again for as long as one that is being ended as well still writes there.
_REMOVE_AT_END_OF_INPUT = 'read -r _; while rm -rf "$0"; sleep 1; [ -e "$0" ]; do :; done'


@contextmanager
def temporary_folder(prefix: str) -> Iterator[Path]:
    """Yield a folder that a process of its own removes when the block, or this process, ends.

    Args:
        prefix: of its name.
    """
    folder = mkdtemp(prefix=prefix)
    remover = subprocess.Popen(
        ["sh", "-c", _REMOVE_AT_END_OF_INPUT, folder],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        # Signals to this process's group, such as Ctrl-C, are not for the one that cleans up.
        start_new_session=True,
    )
    try:
        yield Path(folder)
    finally:
        remover.communicate()
