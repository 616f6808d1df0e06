"""GPT-2's vocabulary as the files of a tokenizer that transformers loads.

They are derived from the rank file alone. `vocab.json` and `merges.txt` come out as OpenAI released
them for GPT-2, byte for byte, under the names `encoder.json` and `vocab.bpe`.
"""

import json
from functools import cache
from itertools import pairwise

from toolkit.data.vocabulary import END_OF_TEXT, END_OF_TEXT_TOKEN, read_ranks

MergeableRanks = dict[bytes, int]


@cache
def gpt2_tokens() -> dict[str, int]:
    """Return GPT-2's 50,257 tokens as `vocab.json` spells them, with their ids, in that order."""
    spelling = _spelling()
    ranks = {_spell(token, spelling): rank for token, rank in read_ranks().items()}
    return {**ranks, END_OF_TEXT_TOKEN: END_OF_TEXT}


@cache
def gpt2_tokenizer_files(block_size: int) -> dict[str, str]:
    """Return the text of each file of GPT-2's tokenizer by its name.

    In text it takes `<|endoftext|>` for the token, as transformers' GPT-2 does.

    Args:
        block_size: tokens that the model has positions for.
    """
    merges = gpt2_merges()
    special = dict.fromkeys(("bos_token", "eos_token", "unk_token"), END_OF_TEXT_TOKEN)
    settings = {
        "tokenizer_class": "GPT2Tokenizer",
        "model_max_length": block_size,
        "add_prefix_space": False,
        "clean_up_tokenization_spaces": False,
        **special,
    }
    return {
        "vocab.json": json.dumps(gpt2_tokens()),
        "merges.txt": "#version: 0.2\n" + "".join(f"{a} {b}\n" for a, b in merges),
        "tokenizer.json": _fast_tokenizer(merges) + "\n",
        "tokenizer_config.json": json.dumps(settings, indent=2) + "\n",
        "special_tokens_map.json": json.dumps(special, indent=2) + "\n",
    }


def gpt2_merges() -> list[tuple[str, str]]:
    """Return the 50,000 pairs in the order in which byte-pair encoding learned to merge them."""
    ranks, spelling = read_ranks(), _spelling()
    # A rank file is in the order of the ranks, and begins with the 256 bytes.
    pairs = [last_merge(token, ranks) for token in ranks if len(token) > 1]
    return [(_spell(left, spelling), _spell(right, spelling)) for left, right in pairs]


def last_merge(token: bytes, ranks: MergeableRanks) -> tuple[bytes, bytes]:
    """Return the two tokens that `token` was first merged from.

    When the encoding learned it, only lower ranks were there; encoded with these alone, its bytes
    end as that pair (Sennrich et al. 2016, "Neural Machine Translation of Rare Words with Subword
    Units", algorithm 1).
    """
    parts = [token[place : place + 1] for place in range(len(token))]
    while len(parts) > 2:
        found = [ranks.get(a + b, len(ranks)) for a, b in pairwise(parts)]
        place = found.index(min(found))
        parts[place : place + 2] = [parts[place] + parts[place + 1]]
    return parts[0], parts[1]


def _spelling() -> list[str]:
    """The printable character for each byte: itself, or for those that print nothing one from
    U+0100 on (`bytes_to_unicode` in GPT-2's released `encoder.py`).
    """
    printable = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    others = iter(range(0x100, 0x200))
    return [chr(byte if byte in printable else next(others)) for byte in range(0x100)]


def _spell(token: bytes, spelling: list[str]) -> str:
    return "".join(spelling[byte] for byte in token)


def _fast_tokenizer(merges: list[tuple[str, str]]) -> str:
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, processors

    tokenizer = Tokenizer(models.BPE(vocab=gpt2_tokens(), merges=merges))
    # Its own pattern is GPT-2's.
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.post_processor = processors.ByteLevel(trim_offsets=False)
    tokenizer.add_special_tokens([AddedToken(END_OF_TEXT_TOKEN, normalized=True, special=True)])
    text: str = tokenizer.to_str(pretty=True)
    return text
