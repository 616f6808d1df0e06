"""Whether the ranks of one launch were started alike, asked before anything depends on it.

Engines assume it and look at nothing: ranks with two seeds, learning rates or sets of shards train
on together, towards a result that is neither's. Each rank contributes its facts by subject, as
`{subject: {key: value}}`. One digest per subject is gathered; the facts themselves are exchanged
only where digests differ, which all ranks see alike.
"""

import hashlib
import json
import socket
from collections.abc import Mapping, Sequence
from typing import Any

import torch
import torch.distributed as dist

from toolkit.errors import UsageError

Facts = Mapping[str, Mapping[str, Any]]

MAX_SUBJECTS = 8
"""Room for digests; fixed, so that two versions of this code can still compare themselves."""
_DIGEST_BYTES = 32
_SHOWN_KEYS = 5
_SHOWN_GROUPS = 4
_SHOWN_CHARACTERS = 80


def compare_ranks(facts: Facts, remedies: Mapping[str, str], *, device: torch.device) -> list[str]:
    """Require equal facts on all ranks in the subjects that have a remedy; a collective.

    Args:
        facts: of this rank, at most `MAX_SUBJECTS` subjects, the same ones on every rank.
        remedies: for each subject that must be equal, what a person can do where it is not.
        device: where the backend takes its tensors.

    Returns:
        One line for each key of the other subjects that differs.

    Raises:
        UsageError: a subject that must be equal is not; names ranks, hosts, keys and values.
    """
    differing = _differing(facts, device)
    if not differing:
        return []
    subjects = [name for number, name in enumerate(facts) if number in differing]
    own = (socket.gethostname(), {name: facts[name] for name in subjects})
    gathered: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(gathered, own)
    hosts = [host for host, _ in gathered]
    found = {
        name: differences([theirs.get(name, {}) for _, theirs in gathered], hosts)
        for name in subjects
    }
    problems = [
        f"the ranks differ in {name}: {_listed(clauses)}; {remedies[name]}"
        for name, clauses in found.items()
        if name in remedies
    ]
    if problems:
        raise UsageError("; ".join(problems))
    return [clause for clauses in found.values() for clause in clauses]


def digests(facts: Facts) -> bytes:
    """Return one SHA-256 per subject, filled up with zeros to the length that all ranks send."""
    texts = (json.dumps(values, sort_keys=True) for values in facts.values())
    joined = b"".join(hashlib.sha256(text.encode()).digest() for text in texts)
    return joined.ljust(MAX_SUBJECTS * _DIGEST_BYTES, b"\0")


def _differing(facts: Facts, device: torch.device) -> set[int]:
    """Return the numbers of the subjects in which the ranks differ."""
    own = torch.frombuffer(bytearray(digests(facts)), dtype=torch.uint8).to(device)
    gathered = [torch.empty_like(own) for _ in range(dist.get_world_size())]
    dist.all_gather(gathered, own)
    rows = torch.stack(gathered).cpu().view(len(gathered), MAX_SUBJECTS, _DIGEST_BYTES)
    return set((rows != rows[0]).any(dim=2).any(dim=0).nonzero().flatten().tolist())


def differences(facts: Sequence[Mapping[str, Any]], hosts: Sequence[str]) -> list[str]:
    """Return a clause for each key that is not the same on all ranks, with every value and place.

    Args:
        facts: of each rank.
        hosts: where each rank runs.
    """
    keys = dict.fromkeys(key for own in facts for key in own)
    clauses = []
    for key in keys:
        ranks: dict[str, list[int]] = {}
        for rank, own in enumerate(facts):
            ranks.setdefault(_text(own[key]) if key in own else "missing", []).append(rank)
        if len(ranks) > 1:
            # The few first: it is they who were started otherwise.
            groups = sorted(ranks.items(), key=lambda group: (len(group[1]), -group[1][0]))
            places = [f"{value} on {_place(those, hosts)}" for value, those in groups]
            clauses.append(f"{key} is " + _listed(places, separator=", ", most=_SHOWN_GROUPS))
    return clauses


def _text(value: Any) -> str:
    text = value if isinstance(value, str) else json.dumps(value)
    return text if len(text) <= _SHOWN_CHARACTERS else f"{text[:_SHOWN_CHARACTERS]}..."


def _place(ranks: Sequence[int], hosts: Sequence[str]) -> str:
    """Name the first of some ranks on each of their hosts."""
    firsts: dict[str, int] = {}
    for rank in ranks:
        firsts.setdefault(hosts[rank], rank)
    places = [f"rank {rank} ({host})" for host, rank in firsts.items()]
    named = _listed(places, separator=" and ", most=_SHOWN_GROUPS)
    others = len(ranks) - len(firsts)
    return f"{named} with {others} more" if others else named


def _listed(parts: Sequence[str], *, separator: str = "; ", most: int = _SHOWN_KEYS) -> str:
    rest = [f"{len(parts) - most} more"] if len(parts) > most else []
    return separator.join([*parts[:most], *rest])
