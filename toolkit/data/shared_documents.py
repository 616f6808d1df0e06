"""Documents that two sets of shards have in common, token by token."""

import hashlib
from array import array
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from toolkit.data.index import read_index
from toolkit.data.stream import Sources, TokenStream
from toolkit.data.vocabulary import END_OF_TEXT

_BLOCK_TOKENS = 2**22
_ALL_IDS = 2**32


def document_hashes(sources: Sources) -> np.ndarray:
    """Return a 64-bit hash of each document of a stream of tokens, sorted, as [n] uint64.

    A prepared folder begins with the id that stands before each document; in any other one it is
    GPT-2's.
    """
    stream = TokenStream(sources, vocab_size=_ALL_IDS)
    first = Path(sources if isinstance(sources, str | Path) else sources[0])
    is_prepared = first.is_dir() and read_index(first) is not None
    end = int(stream.read(0, 1)[0]) if is_prepared else END_OF_TEXT
    hashes = array("Q")
    document = hashlib.blake2b(digest_size=8)
    length = 0
    for start in range(0, len(stream), _BLOCK_TOKENS):
        tokens = stream.read(start, min(start + _BLOCK_TOKENS, len(stream)))
        parts = np.split(tokens, np.flatnonzero(tokens == end))
        for number, part in enumerate(parts):
            if number:
                if length:
                    hashes.append(int.from_bytes(document.digest(), "little"))
                document, length = hashlib.blake2b(digest_size=8), 0
                part = part[1:]
            document.update(part.tobytes())
            length += part.size
    if length:
        hashes.append(int.from_bytes(document.digest(), "little"))
    return np.sort(np.array(hashes, dtype=np.uint64))


def describe_shared(sets: Mapping[str, Sources]) -> list[str]:
    """Return a sentence for each two sets of shards, by their names, that share documents."""
    hashes = {name: document_hashes(sources) for name, sources in sets.items()}
    lines = []
    for number, first in enumerate(sets):
        for second in [*sets][number + 1 :]:
            shared = int(np.isin(hashes[second], hashes[first]).sum())
            if shared:
                total = len(hashes[second])
                lines.append(
                    f"{shared:,} of the {total:,} documents of {second} are also in {first}"
                )
    return lines
