"""Where a text may be cut so that its pieces encode to the same tokens as the whole.

GPT-2's pattern splits text into words before any byte pairs are merged, and no word reaches from
a character that isn't white space across a following space or line break. A cut there is exact.
"""

import re
from collections.abc import Iterator

# A word longer than this is cut inside, which changes the tokens around the cut. tiktoken before
# 0.13 takes quadratic time in the length of a word, 5 s for 100,000 letters, and white space that
# is too long makes it panic; see openai/tiktoken issues 15, 195 and 245.
PIECE = 2**13
# A longer run without a place to cut is a blob or a fault, not text.
MAX_RUN = 2**20

_TO_LAST_CUT = re.compile(r".*\S(?=[ \n])", re.DOTALL)


def last_cut(text: str, start: int = 0, stop: int | None = None) -> int | None:
    """Return the last exact cut in text[start:stop], or None."""
    match = _TO_LAST_CUT.match(text, start, len(text) if stop is None else stop)
    return match.end() if match else None


def pieces(text: str) -> Iterator[str]:
    """Yield `text` in pieces of at most `PIECE` characters, cut exactly where that is possible."""
    start = 0
    while len(text) - start > PIECE:
        stop = last_cut(text, start, start + PIECE) or start + PIECE
        yield text[start:stop]
        start = stop
    yield text[start:]


def overlong_run(text: str) -> int | None:
    """Return where more than `MAX_RUN` characters without an exact cut begin, or None."""
    start = 0
    while len(text) - start > MAX_RUN:
        cut = last_cut(text, start, start + MAX_RUN + 1)
        if cut is None:
            return start
        start = cut
    return None
