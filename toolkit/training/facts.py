"""What the ranks of a run are started with: what must be the same on all of them, and what may not.

Whatever is not named here as free must be equal, a new key of the configuration as well.
"""

import hashlib
import os
import platform
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from toolkit.config import RunConfig, dotted_values
from toolkit.engines.agreement import Facts
from toolkit.engines.launched import Launched
from toolkit.engines.packages import PACKAGES
from toolkit.errors import UsageError
from toolkit.training.run_folder import package_versions

REMEDIES = {
    "code": "install the same toolkit on every machine",
    "configuration": "start every rank with the same configuration",
    "data": "give every rank the same shards",
    "versions": "install the same versions on every machine",
    "hardware": "use machines that compute alike, or, on CPUs, one ATEN_CPU_CAPABILITY",
    "run folder": "output_dir must be one folder that all machines share",
}
"""The subjects in which the ranks must be equal, and what to do where they are not."""

FREE = "free"
"""The subject of what may differ."""

FREE_KEYS = (
    # The shards are compared by what they hold.
    "data.train",
    "data.val",
    # The folder itself is compared, by a mark in it: machines may mount it in different places.
    "output_dir",
    # Another name for sizes that are compared.
    "model.preset",
    # Only rank 0 has trackers.
    "training.trackers",
    "training.tracker_project",
)
"""Keys of the configuration that may differ between ranks."""

# Order of the data, kernels and engines come from these; the others write files.
_DECISIVE_PACKAGES = (*PACKAGES, "numpy")
_PACKAGE = Path(__file__).resolve().parents[1]
_SHOWN_DIGITS = 12


def run_facts(
    config: RunConfig,
    launched: Launched,
    data: dict[str, dict[str, Any]],
    *,
    device: torch.device,
    mark: Path,
) -> Facts:
    """Return what this rank was started with, by subject.

    Args:
        config: of the run.
        launched: this rank's share of the launch.
        data: `TokenStream.fingerprint` of each set of shards, by the key that names it.
        device: what it computes on.
        mark: the file of `marked`.
    """
    equal, free = _configuration(config, launched)
    packages = package_versions()
    decisive = {name: packages.pop(name, None) for name in _DECISIVE_PACKAGES}
    hardware, kind = _hardware(device)
    shared = {"mark of rank 0 in the run folder": _mark_in(mark)}
    saves = config.training.checkpoint_every != "never"
    return {
        "code": source_digests(_PACKAGE),
        "configuration": equal,
        "data": {key: _short(values) for key, values in dotted_values(data).items()},
        "versions": {"python": _python(parts=2), **decisive, "cuda": torch.version.cuda},
        "hardware": hardware,
        "run folder": shared if saves else {},
        FREE: {
            **free,
            "python": _python(parts=3),
            **packages,
            **kind,
            **({} if saves else shared),
        },
    }


@contextmanager
def marked(folder: Path, *, rank: int) -> Iterator[Path]:
    """Have a file in rank 0's run folder by which the others see whether theirs is the same one.

    Raises:
        UsageError: it cannot be written.
    """
    mark = folder / ".mark"
    if rank == 0:
        try:
            mark.write_text(secrets.token_hex(_SHOWN_DIGITS // 2))
        except OSError as error:
            raise UsageError(f"{mark}: cannot be written: {error.strerror}") from None
    try:
        yield mark
    finally:
        if rank == 0:
            mark.unlink(missing_ok=True)


def source_digests(folder: Path) -> dict[str, str]:
    """Return the first digits of the SHA-256 of each Python file below a folder, by its path."""
    return {
        path.relative_to(folder.parent).as_posix(): _short(path.read_bytes())
        for path in sorted(folder.rglob("*.py"))
    }


def _configuration(config: RunConfig, launched: Launched) -> tuple[dict[str, Any], dict[str, Any]]:
    values = dotted_values(config.model_dump(mode="json"))
    free = {key: values.pop(key) for key in FREE_KEYS}
    return {"strategy": launched.strategy, "replicas": launched.replicas, **values}, free


def _hardware(device: torch.device) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return what decides which kernels compute, and what only decides how fast."""
    if device.type == "cuda":
        major, minor = torch.cuda.get_device_capability(device)
        capability = {"device": "cuda", "compute capability": f"{major}.{minor}"}
        return capability, {"device name": torch.cuda.get_device_name(device)}
    instructions = torch.backends.cpu.get_cpu_capability()
    capability = {"device": device.type, "machine": platform.machine()}
    return {**capability, "vector instructions": instructions}, {"cpu cores": os.cpu_count()}


def _python(*, parts: int) -> str:
    return ".".join(platform.python_version_tuple()[:parts])


def _mark_in(mark: Path) -> str:
    try:
        return mark.read_text()
    except OSError:
        return "missing"


def _short(value: Any) -> Any:
    """Return the first digits of a digest of bytes or of a list; a number stays as it is."""
    if isinstance(value, bytes):
        return hashlib.sha256(value).hexdigest()[:_SHOWN_DIGITS]
    if isinstance(value, list):
        return _short("\n".join(value).encode()) if value else "none"
    return value[:_SHOWN_DIGITS] if isinstance(value, str) else value
