"""GPT-2's byte-pair vocabulary, built from the rank file that lies beside this module.

The file is OpenAI's `r50k_base.tiktoken`, byte for byte, so nothing is downloaded.
"""

import base64
import hashlib
from pathlib import Path
from typing import TYPE_CHECKING

from toolkit.errors import UntrustedError

if TYPE_CHECKING:
    import tiktoken

VOCABULARY_NAME = "gpt2"
VOCABULARY_SIZE = 50_257
END_OF_TEXT = 50_256
END_OF_TEXT_TOKEN = "<|endoftext|>"
RANKS_FILE = Path(__file__).with_name("gpt2_vocabulary") / "r50k_base.tiktoken"
# What tiktoken itself expects of the file: `tiktoken_ext/openai_public.py`, `r50k_base`.
RANKS_SHA256 = "306cd27f03c1a714eca7108e03d66b7dc042abe8c258b44c199a7ed9838dd930"


def build_vocabulary(ranks_file: Path = RANKS_FILE) -> "tiktoken.Encoding":
    """Return GPT-2's vocabulary: 50,256 byte pairs and `<|endoftext|>`.

    Encode text with `encode_ordinary`: a document that spells `<|endoftext|>` stays text.

    Raises:
        UntrustedError: the rank file is missing or not OpenAI's.
    """
    import tiktoken
    from tiktoken_ext.openai_public import r50k_pat_str  # type: ignore[import-untyped]

    return tiktoken.Encoding(
        VOCABULARY_NAME,
        pat_str=r50k_pat_str,
        mergeable_ranks=read_ranks(ranks_file),
        special_tokens={END_OF_TEXT_TOKEN: END_OF_TEXT},
        explicit_n_vocab=VOCABULARY_SIZE,
    )


def read_ranks(path: Path = RANKS_FILE) -> dict[bytes, int]:
    """Return the bytes of each token with its rank, which is its id, in the order of the ranks.

    A line of the file is a token's bytes in base64, a space and its rank.

    Raises:
        UntrustedError: the file is missing or not OpenAI's.
    """
    try:
        data = path.read_bytes()
    except OSError as error:
        raise UntrustedError(f"{path}: cannot be read: {error.strerror}") from None
    found = hashlib.sha256(data).hexdigest()
    if found != RANKS_SHA256:
        raise UntrustedError(
            f"{path}: not GPT-2's vocabulary; SHA-256 {found}, but {RANKS_SHA256} is expected"
        )
    pairs = (line.split() for line in data.splitlines())
    return {base64.b64decode(token): int(rank) for token, rank in pairs}
