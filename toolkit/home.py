"""`~` where no shell replaces it: behind `--out=`, in a configuration, in an override."""

import os
import re
from collections.abc import Sequence

_PATH = re.compile(r"(--[\w-]+=)?(~.*)", re.DOTALL)


def expand_words(words: Sequence[str]) -> list[str]:
    """Return a command line with the home folder for `~` at the start of each word or value.

    What follows `--` is another program's, and `section.key=~/x` the configuration's.
    """
    own = words.index("--") if "--" in words else len(words)
    return [*map(_expand_word, words[:own]), *words[own:]]


def _expand_word(word: str) -> str:
    match = _PATH.fullmatch(word)
    return (match[1] or "") + os.path.expanduser(match[2]) if match else word
