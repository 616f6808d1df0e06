"""In what the last machine is started otherwise than the others, for faults that are a mistake."""

import json
import shutil
from collections.abc import Callable
from importlib import metadata
from pathlib import Path

from toolkit.config import RunConfig
from toolkit.data.stream import TokenStream
from toolkit.rehearse.machines import Difference

NOBODYS_ADDRESS = "10.77.0.99"
_LIBRARY = "numpy"
_PACKAGE = Path(__file__).parents[1]


def difference(fault: str, config: RunConfig, folder: Path) -> Difference:
    """Return what makes a machine the one with this fault; nothing where it befalls it later.

    Args:
        fault: its name.
        config: of the run.
        folder: for what the machine alone has.
    """
    make = _MISTAKES.get(fault)
    return make(config, folder) if make else Difference()


def _wrong_address(config: RunConfig, folder: Path) -> Difference:
    return Difference(address=NOBODYS_ADDRESS)


def _other_config(config: RunConfig, folder: Path) -> Difference:
    return Difference(overrides=(f"seed={config.seed + 1}",))


def _other_data(config: RunConfig, folder: Path) -> Difference:
    """The same shards but for their first token."""
    vocab_size = config.model.vocab_size
    first, *others = TokenStream(config.data.train, vocab_size=vocab_size).shards
    copy = folder / first.path.name
    shutil.copy(first.path, copy)
    token = int(first.read(0, 1)[0])
    with copy.open("r+b") as file:
        file.seek(first.offset)
        file.write(int(token == 0).to_bytes(first.type.itemsize, "little"))
    paths = [str(copy), *(str(shard.path) for shard in others)]
    return Difference(overrides=(f"data.train={json.dumps(paths)}",))


def _other_code(config: RunConfig, folder: Path) -> Difference:
    """The same toolkit but for a comment."""
    package = folder / _PACKAGE.name
    shutil.copytree(_PACKAGE, package, ignore=shutil.ignore_patterns("__pycache__"))
    with (package / "__init__.py").open("a") as file:
        file.write("# another\n")
    return Difference(modules=folder)


def _other_version(config: RunConfig, folder: Path) -> Difference:
    """A library that reports a local version (PEP 440), so that whatever needs it takes it."""
    version = f"{metadata.version(_LIBRARY)}+other"
    information = folder / f"{_LIBRARY}-{version}.dist-info"
    information.mkdir()
    text = f"Metadata-Version: 2.1\nName: {_LIBRARY}\nVersion: {version}\n"
    (information / "METADATA").write_text(text)
    return Difference(modules=folder)


_MISTAKES: dict[str, Callable[[RunConfig, Path], Difference]] = {
    "wrong-address": _wrong_address,
    "other-config": _other_config,
    "other-data": _other_data,
    "other-code": _other_code,
    "other-version": _other_version,
}
