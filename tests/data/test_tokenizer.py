"""The tokenizer that goes with exported weights is GPT-2's, file by file and token by token."""

import hashlib
import inspect
import json
import random
import sys
import unicodedata

import pytest
from tiktoken_ext import openai_public
from tokenizers import Tokenizer

from toolkit.data.tokenizer import gpt2_merges, gpt2_tokenizer_files, gpt2_tokens, last_merge
from toolkit.data.vocabulary import END_OF_TEXT, build_vocabulary


def test_words_and_merges_are_the_files_that_openai_released() -> None:
    files = gpt2_tokenizer_files(1024)
    released = inspect.getsource(openai_public.gpt2)
    for name in ("vocab.json", "merges.txt"):
        assert hashlib.sha256(files[name].encode()).hexdigest() in released


def test_a_merge_is_the_last_one_and_not_any_that_fits() -> None:
    # "ab" came after "abc", which was therefore merged from "a" and "bc".
    ranks = {b"a": 0, b"b": 1, b"c": 2, b"bc": 3, b"abc": 4, b"ab": 5}
    assert last_merge(b"abc", ranks) == (b"a", b"bc")
    assert len(gpt2_merges()) == 50_000


@pytest.fixture(scope="module")
def fast() -> Tokenizer:
    return Tokenizer.from_str(gpt2_tokenizer_files(1024)["tokenizer.json"])


def _texts() -> list[str]:
    numbers = random.Random(7)
    # Libraries of any age agree about the characters of an old Unicode.
    printable = [
        chr(point)
        for point in range(sys.maxunicode + 1)
        if unicodedata.ucd_3_2_0.category(chr(point)) not in ("Cs", "Cn", "Co")
    ]
    white = " \t\n\r\v\f\u00a0\u2003\u2028\u3000\u0085"
    return [
        "",
        "<|endoftext|>",
        "one<|endoftext|>two <|endoftext|>\n<|endoftext|><|endoftext|> three<|endoftext|",
        "Hello world, don't we'll they've I'M CAN'T 'tis ''s",
        "Grüße, 世界 🎉👩‍👩‍👧 e\u0301 ﬁ Ⅷ ½ ١٢٣ \u200b\ufeff नमस्ते",
        "  two\n\n\n   lines \t\t and tabs\r\n\r\n trailing   ",
        "\x00\x01\x7f 1234567 3.14 $%^&* ==>> ___ a" + "!" * 300,
        *("".join(numbers.choices(white + "ab1.", k=60)) for _ in range(300)),
        *("".join(numbers.choices(printable, k=60)) for _ in range(300)),
        inspect.getsource(json.decoder),
        "def f(x):\n\tif x:\n\t\treturn {'a': x[0]}  # ok\n" * 3,
    ]


def test_any_text_has_the_same_tokens_as_in_training(fast: Tokenizer) -> None:
    ours = build_vocabulary()
    for text in _texts():
        expected = ours.encode(text, allowed_special="all")
        assert fast.encode(text).ids == expected, repr(text)
        assert fast.decode(expected, skip_special_tokens=False) == text


def test_every_token_has_its_id(fast: Tokenizer) -> None:
    assert fast.get_vocab(with_added_tokens=True) == gpt2_tokens()
    assert fast.token_to_id("<|endoftext|>") == END_OF_TEXT
