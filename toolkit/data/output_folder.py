"""Who may write into an output folder, and what may be there already."""

import fcntl
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from toolkit.data.index import MARKER_NAME, Index, read_index
from toolkit.data.verify import shard_problems
from toolkit.errors import UntrustedError, UsageError

_OURS = re.compile(
    r"shard_\d{6}\.bin|tokenizer\.(json|model)"
    r"|\.(shard_\d{6}\.bin|index\.json|tokenizer\.(json|model))\.tmp"
)


@contextmanager
def claim_output_folder(folder: Path, wanted: Index) -> Iterator[Index | None]:
    """Yield the index of an earlier output that `wanted` would repeat, or None in a clean folder.

    Inside, a clean folder belongs to this process.

    Raises:
        UsageError: the folder holds something else, cannot be written, or another process is
            writing there.
        UntrustedError: it holds the same output, damaged.
    """
    earlier = _earlier_output(folder, wanted)
    if earlier:
        yield earlier
        return
    _refuse_foreign(folder)
    marker = folder / MARKER_NAME
    try:
        folder.mkdir(parents=True, exist_ok=True)
        lock = open(marker, "w")  # noqa: SIM115
    except OSError as error:
        raise UsageError(f"{folder}: cannot be written: {error.strerror}") from None
    # The lock ends with the process, however it ends.
    with lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise UsageError(f"{folder}: another process is preparing data there") from None
        # Another process may have finished between the first look and the lock.
        earlier = _earlier_output(folder, wanted)
        if not earlier:
            _remove_leftovers(folder)
        yield earlier
        marker.unlink(missing_ok=True)


def _earlier_output(folder: Path, wanted: Index) -> Index | None:
    index = read_index(folder) if folder.is_dir() else None
    if index is None:
        return None
    if _content(index) != _content(wanted):
        raise UsageError(
            f"{folder}: holds shards of other text or of another size; choose an empty folder"
        )
    problem = next(shard_problems(folder, index), None)
    if problem:
        raise UntrustedError(f"{problem}; remove {folder} to prepare it again")
    return index


def _content(index: Index) -> object:
    """What decides the tokens: not where the files lie, but what is in them and of which kind."""
    return (
        index.vocabulary,
        index.shard_tokens,
        [
            (Path(source.path).suffix, source.sha256, source.documents, source.skipped)
            for source in index.sources
        ],
    )


def _refuse_foreign(folder: Path) -> None:
    if not folder.exists():
        return
    if not folder.is_dir():
        raise UsageError(f"{folder}: not a folder")
    names = sorted(path.name for path in folder.iterdir())
    interrupted = MARKER_NAME in names
    for name in names:
        if not (interrupted and (name == MARKER_NAME or _OURS.fullmatch(name))):
            raise UsageError(
                f"{folder / name}: in the way; choose an empty folder to prepare data in"
            )


def _remove_leftovers(folder: Path) -> None:
    for path in folder.iterdir():
        if _OURS.fullmatch(path.name):
            path.unlink()
