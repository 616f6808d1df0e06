"""Texts to two folders of shards, or to one without near-duplicates."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from toolkit.data.encode import Encoding
from toolkit.data.prepare import SHARD_TOKENS, PreparedData, prepare_files
from toolkit.data.split import Split, Treatment, split_documents
from toolkit.data.unpack import TextFile, unpacked
from toolkit.errors import UsageError


@dataclass(frozen=True)
class PreparedSplit:
    """The folders that were written; `near_duplicates` is None where nobody looked for them."""

    folders: list[PreparedData]
    near_duplicates: int | None
    removed: bool

    @property
    def summary(self) -> str:
        """A line for each folder, and one for the near-duplicates."""
        lines = [folder.summary for folder in self.folders]
        if self.near_duplicates is not None:
            what = "removed" if self.removed else "found, and kept"
            lines.append(f"near-duplicates of earlier documents {what}: {self.near_duplicates:,}")
        return "\n".join(lines)


def prepare_split(
    inputs: Sequence[str | Path],
    out_dir: Path,
    *,
    val_fraction: float = 0.0,
    near_duplicates: Treatment = "keep",
    skip_bad: bool = False,
    shard_tokens: int = SHARD_TOKENS,
    processes: int | None = None,
    encoding: Encoding = Encoding(),  # noqa: B008
    extensions: Sequence[str] = (),
) -> PreparedSplit:
    """Write `out_dir`/train and `out_dir`/val, or `out_dir` alone without a `val_fraction`.

    Args:
        inputs: as `prepare`, whose other arguments these are too.
        out_dir: the folder, or that of both.
        val_fraction: of all documents, by their own hash.
        near_duplicates: as `split_documents`.

    Raises:
        UsageError: as `prepare`, or no document falls on one of the sides.
    """
    if not 0 <= val_fraction < 1:
        raise UsageError(f"--val-fraction must be at least 0 and below 1, got {val_fraction}")
    with (
        unpacked(inputs, out_dir, field=encoding.field, extensions=extensions) as (files, ignored),
        split_documents(
            files,
            out_dir,
            val_fraction=val_fraction,
            field=encoding.field,
            near_duplicates=near_duplicates,
        ) as split,
    ):
        prepared = [
            prepare_files(
                side,
                folder,
                ignored=ignored,
                skip_bad=skip_bad,
                shard_tokens=shard_tokens,
                processes=processes,
                encoding=encoding,
            )
            for folder, side in _sides(split, out_dir, val_fraction).items()
        ]
    found = None if near_duplicates == "keep" else split.near_duplicates
    return PreparedSplit(prepared, found, near_duplicates == "remove")


def _sides(split: Split, out_dir: Path, val_fraction: float) -> dict[Path, list[TextFile]]:
    """Return the files of each folder, of which none may be without."""
    sides = {out_dir: split.train}
    if val_fraction:
        sides = {out_dir / "train": split.train, out_dir / "val": split.val}
    for folder, side in sides.items():
        if not side:
            raise UsageError(
                f"no document falls into {folder}: with --val-fraction {val_fraction} there "
                f"are {len(split.train)} files to train on and {len(split.val)} to validate on"
            )
    return sides
