"""Hugging Face datasets as rows: saved in a folder, or streamed by name."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from toolkit.errors import UsageError

_NAMED = re.compile(r"hf:(?P<name>[^@]+?)(?:@(?P<configuration>[^:]+))?(?::(?P<split>\w+))?")


def is_dataset(name: str) -> bool:
    """Whether an input is a dataset: `hf:NAME...`, or a folder that `save_to_disk` wrote."""
    folder = Path(name)
    return name.startswith("hf:") or any(
        (folder / file).is_file() for file in ("state.json", "dataset_dict.json")
    )


def dataset_rows(name: str) -> Iterator[dict[str, Any]]:
    """Yield the rows of a dataset, one at a time; one by name is streamed.

    Raises:
        UsageError: `datasets` is not installed, or it cannot load this.
    """
    try:
        import datasets
    except ImportError:
        raise UsageError(f"{name}: needs datasets; `pip install datasets`") from None
    if (Path(name) / "dataset_dict.json").is_file():
        splits = ", ".join(str(path.parent) for path in sorted(Path(name).glob("*/state.json")))
        raise UsageError(f"{name}: holds several splits; name one: {splits}")
    try:
        yield from _load(datasets, name)
    except Exception as error:
        reason = (str(error).splitlines() or [""])[0]
        raise UsageError(f"{name}: cannot be loaded: {type(error).__name__}: {reason}") from None


def _load(datasets: Any, name: str) -> Any:
    match = _NAMED.fullmatch(name)
    if match is None:
        return datasets.load_from_disk(name)
    return datasets.load_dataset(
        match["name"], match["configuration"], split=match["split"] or "train", streaming=True
    )
