"""Whether all ranks are about to train the same run: compared before the first step.

Machines start their ranks apart, with files, code and packages of their own. What decides numbers
must be equal on all of them, else the run learns neither machine's configuration, in silence.
"""

import hashlib
import json
import platform
import socket
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

import toolkit
from toolkit.backends.launched import Launched
from toolkit.config import RunConfig, dotted_values
from toolkit.data.stream import TokenStream
from toolkit.errors import UsageError

MAY_DIFFER = frozenset(
    {
        "model.preset",
        "data.train",
        "data.val",
        "output_dir",
        "training.keep_last",
        "training.timeout_s",
        "training.trackers",
    }
)
"""Keys that decide no number: names of places, and what one rank does by itself."""
_PACKAGES = ("torch", "accelerate", "deepspeed", "numpy")
_NAMED = 3


@dataclass(frozen=True)
class Facts:
    """What one rank is about to train with; values are compared as JSON.

    Attributes:
        rank: which one.
        host: its machine's name.
        equal: what must be equal on all ranks, by key.
        free: what may differ, by key.
    """

    rank: int
    host: str
    equal: dict[str, Any]
    free: dict[str, Any]

    def digest(self) -> bytes:
        """Return 64 bytes: one SHA-256 of what must be equal, one of what may differ."""
        return b"".join(_digest(values) for values in (self.equal, self.free))


def collect_facts(
    config: RunConfig, launched: Launched, streams: Mapping[str, TokenStream], device: torch.device
) -> Facts:
    """Return the facts of this rank.

    Args:
        config: the run.
        launched: the strategy and this rank's place in it.
        streams: the opened data by the key that names it.
        device: what this rank computes on.
    """
    keys = dotted_values(config.model_dump(mode="json"))
    equal = {key: value for key, value in keys.items() if key not in MAY_DIFFER}
    equal |= {f"launch: {name}": value for name, value in launched.describe().items()}
    equal |= {f"shards of {key}": stream.fingerprint() for key, stream in streams.items()}
    equal |= {f"version of {name}": version for name, version in _versions().items()}
    equal |= {
        "version of python": ".".join(platform.python_version_tuple()[:2]),
        "code of the toolkit": code_digest(),
        "type of device": device.type,
    }
    free = {key: value for key, value in keys.items() if key in MAY_DIFFER}
    free |= {"python": platform.python_version(), "device": _device_name(device)}
    return Facts(launched.rank, socket.gethostname(), equal, free)


def agree(own: Facts, device: torch.device) -> list[str]:
    """Compare the facts of all ranks, in one collective where they are equal.

    Returns:
        A sentence for each key that may differ and does.

    Raises:
        UsageError: what must be equal is not; on every rank, naming rank, host, key and values.
    """
    if not _differ(own, device):
        return []
    everyone: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(everyone, asdict(own))
    facts = [Facts(**each) for each in everyone]
    if problems := list(differences([each.equal for each in facts], facts)):
        more = f"; and {len(problems) - _NAMED} more" if len(problems) > _NAMED else ""
        raise UsageError(
            f"the ranks are not about to train the same: {'; '.join(problems[:_NAMED])}{more}"
        )
    return list(differences([each.free for each in facts], facts))


def differences(values: Sequence[Mapping[str, Any]], facts: Sequence[Facts]) -> Iterator[str]:
    """Yield a sentence for each key whose value is not the same on all ranks.

    It names the first rank that differs from the first rank, both hosts and both values.
    """
    first = values[0]
    for key in dict.fromkeys(key for each in values for key in each):
        others = (n for n, each in enumerate(values) if each.get(key) != first.get(key))
        other = next(others, None)
        if other is not None:
            found, usual = _shown(values[other].get(key), first.get(key))
            yield (
                f"{key} is {found} on rank {facts[other].rank} (host {facts[other].host}) "
                f"and {usual} on rank {facts[0].rank} (host {facts[0].host})"
            )


def code_digest() -> str:
    """Return a SHA-256 over names and contents of the toolkit's own modules."""
    root = Path(toolkit.__file__).parent
    digest = hashlib.sha256()
    for path in sorted(root.rglob("*.py")):
        digest.update(f"{path.relative_to(root)}\0".encode())
        digest.update(hashlib.sha256(path.read_bytes()).digest())
    return digest.hexdigest()


def _differ(own: Facts, device: torch.device) -> bool:
    sent = torch.tensor(list(own.digest()), dtype=torch.uint8, device=device)
    found = [torch.empty_like(sent) for _ in range(dist.get_world_size())]
    dist.all_gather(found, sent)
    return any(not torch.equal(each, sent) for each in found)


def _digest(values: Mapping[str, Any]) -> bytes:
    return hashlib.sha256(json.dumps(values, sort_keys=True).encode()).digest()


def _versions() -> dict[str, str]:
    installed = {}
    for name in _PACKAGES:
        try:
            installed[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            installed[name] = "none"
    return installed


def _device_name(device: torch.device) -> str:
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    return f"{platform.machine()}, {torch.backends.cpu.get_cpu_capability()}"


def _shown(found: Any, usual: Any) -> tuple[str, str]:
    """Return two values as text; of two mappings or long texts, only where they differ."""
    if isinstance(found, dict) and isinstance(usual, dict):
        key = next(key for key in found if found[key] != usual.get(key))
        one, other = _shown(found[key], usual.get(key))
        return f"{one} ({key})", f"{other} ({key})"
    return _short(found), _short(usual)


def _short(value: Any) -> str:
    if isinstance(value, list) and len(value) == 1:
        value = value[0]
    text = value if isinstance(value, str) else json.dumps(value)
    return f"{text[:12]}..." if len(text) == 64 else text
