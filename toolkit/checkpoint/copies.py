"""Where the copies of a run are in memory, who holds them, and the removal of stale ones.

Whoever makes copies holds their folder by a lock (flock(2)), which ends with the process. What
nobody holds is kept for the next start of its run, but neither for ever nor for one that is gone.
"""

import fcntl
import os
import secrets
import shutil
import time
from contextlib import suppress
from pathlib import Path

MEMORY = Path("/dev/shm")
KEPT_S = 24 * 3600.0
"""How long a run that has crashed may take to be started again from its copies."""
_PREFIX = "scaling-toolkit-"
_TOKEN = ".copies"
_RUN = "run"


def token_of(run_folder: Path) -> str:
    """Return what names the copies of a run, written when it first makes some."""
    path = run_folder / _TOKEN
    if not path.exists():
        path.write_text(secrets.token_hex(8))
    return path.read_text()


def folder_of(token: str) -> Path:
    """Return where the copies of a run are on this machine."""
    return MEMORY / f"{_PREFIX}{token}"


def hold(copies: Path, run_folder: Path) -> None:
    """Keep the copies of a run from being removed as stale until this process ends."""
    (copies / _RUN).write_text(str(run_folder.resolve()))
    fcntl.flock(os.open(copies, os.O_RDONLY), fcntl.LOCK_SH)


def release(copies: Path, run_folder: Path) -> None:
    """Give up what is left, unless others on this machine have copies there; the run needs none."""
    (run_folder / _TOKEN).unlink(missing_ok=True)
    if {path.name for path in copies.glob("*")} <= {_RUN}:
        shutil.rmtree(copies, ignore_errors=True)


def remove_stale() -> None:
    """Remove copies that nobody holds if their run needs them no more, or after `KEPT_S`."""
    for copies in MEMORY.glob(f"{_PREFIX}*"):
        # What another process removes at the same time, or another user made, is not for this one.
        with suppress(OSError):
            opened = os.open(copies, os.O_RDONLY)
            try:
                fcntl.flock(opened, fcntl.LOCK_EX | fcntl.LOCK_NB)
                if _is_stale(copies):
                    shutil.rmtree(copies)
            finally:
                os.close(opened)


def _is_stale(copies: Path) -> bool:
    newest = max(path.stat().st_mtime for path in (copies, *copies.iterdir()))
    if time.time() - newest > KEPT_S:
        return True
    token = Path((copies / _RUN).read_text()) / _TOKEN
    return not token.exists() or folder_of(token.read_text()) != copies
