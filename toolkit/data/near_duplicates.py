"""Documents that are nearly the same as an earlier one, by MinHash.

Broder 1997, "On the resemblance and containment of documents": two documents resemble each other by
the share of their shingles, here runs of five words, that both have. What is remembered is about
one kilobyte for each document.
"""

from collections.abc import Iterator
from typing import Any

from toolkit.errors import UsageError

RESEMBLANCE = 0.8
"""From this on a document counts as a near-duplicate; Lee et al. 2022, "Deduplicating Training Data
Makes Language Models Better", section 4.2, has it too."""
_SHINGLE_WORDS = 5
_PERMUTATIONS = 128


class NearDuplicates:
    """The documents so far.

    Raises:
        UsageError: datasketch is not installed.
    """

    def __init__(self) -> None:
        try:
            from datasketch import MinHash, MinHashLSH
        except ImportError:
            raise UsageError(
                "--near-duplicates needs datasketch; `pip install datasketch`"
            ) from None
        self._empty = MinHash(num_perm=_PERMUTATIONS)
        self._index = MinHashLSH(threshold=RESEMBLANCE, num_perm=_PERMUTATIONS)
        self._sketches: list[Any] = []

    def repeats(self, text: str) -> bool:
        """Return whether a document resembles an earlier one; if not, remember it."""
        sketch = self._empty.copy()
        sketch.update_batch(list(_shingles(text)))
        near = (self._sketches[number] for number in self._index.query(sketch))
        if any(sketch.jaccard(other) >= RESEMBLANCE for other in near):
            return True
        self._index.insert(len(self._sketches), sketch)
        self._sketches.append(sketch)
        return False


def _shingles(text: str) -> Iterator[bytes]:
    words = text.lower().split()
    for start in range(max(len(words) - _SHINGLE_WORDS + 1, 1)):
        yield " ".join(words[start : start + _SHINGLE_WORDS]).encode()
