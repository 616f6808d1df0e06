"""Weights of another vocabulary are refused, whichever file shows that it is another one."""

import json
from pathlib import Path
from typing import Any

import pytest

from toolkit.checkpoint.description import check_vocabulary
from toolkit.data.tokenizer import gpt2_tokenizer_files, gpt2_tokens
from toolkit.errors import UntrustedError, UsageError


@pytest.fixture
def weights(tmp_path: Path) -> Path:
    return tmp_path / "model.safetensors"


def describe(weights: Path, name: str, value: Any) -> None:
    weights.with_name(name).write_text(json.dumps(value))


@pytest.mark.parametrize(
    ("words", "rows", "wanted"),
    [
        (50_257, 50_257, 50_257),
        (50_257, 50_257, 50_304),
        (50_257, 50_304, 50_304),
        (50_257, 50_304, 50_257),
        (50_304, 50_304, 50_257),
        (50_304, 50_304, 51_200),
        (512, 512, 512),
        (500, 512, 512),
    ],
)
def test_the_same_vocabulary_may_be_padded_otherwise(
    weights: Path, words: int, rows: int, wanted: int
) -> None:
    describe(weights, "config.json", {"vocab_size": words})
    check_vocabulary(weights, rows, wanted)
    describe(weights, "config.json", {})
    check_vocabulary(weights, rows, wanted)


@pytest.mark.parametrize(
    ("words", "rows", "wanted"),
    [
        (8_192, 8_192, 50_304),
        (8_192, 50_304, 50_304),
        (50_256, 50_256, 50_257),
        (50_257, 50_257, 8_192),
        (65_536, 65_536, 50_304),
        (500, 500, 512),
        (512, 512, 500),
    ],
)
def test_another_vocabulary_is_refused_with_both_sizes(
    weights: Path, words: int, rows: int, wanted: int
) -> None:
    describe(weights, "config.json", {"vocab_size": words})
    with pytest.raises(UsageError) as caught:
        check_vocabulary(weights, rows, wanted)
    assert f"a vocabulary of {words:,} tokens" in str(caught.value)
    assert f"model.vocab_size is {wanted:,}" in str(caught.value)


def test_gpt2s_own_tokenizer_is_none_of_another_vocabulary(weights: Path) -> None:
    files = gpt2_tokenizer_files(1024)
    for name in ("tokenizer.json", "vocab.json"):
        weights.with_name(name).write_text(files[name])
        check_vocabulary(weights, 50_257, 50_304)
        weights.with_name(name).unlink()


def _one_more(words: dict[str, int]) -> dict[str, int]:
    return words | {"[PAD]": 50_257}


def _other_word(words: dict[str, int]) -> dict[str, int]:
    return {("hola" if token == 500 else word): token for word, token in words.items()}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (_one_more, r"50,258 tokens that is not GPT-2's, .* differ in '\[PAD\]'"),
        (_other_word, "50,257 tokens that is not GPT-2's, .* differ in 'hola'"),
    ],
)
def test_a_tokenizer_of_other_tokens_is_seen_at_the_same_size(
    weights: Path, change: Any, message: str
) -> None:
    words = change(gpt2_tokens())
    describe(weights, "vocab.json", words)
    with pytest.raises(UsageError, match=rf"vocab\.json: a vocabulary of {message}"):
        check_vocabulary(weights, 50_304, 50_304)
    describe(weights, "tokenizer.json", {"model": {"vocab": words}, "added_tokens": []})
    with pytest.raises(UsageError, match=rf"tokenizer\.json: a vocabulary of {message}"):
        check_vocabulary(weights, 50_257, 50_304)


def test_tokens_that_were_added_count(weights: Path) -> None:
    describe(weights, "vocab.json", gpt2_tokens())
    describe(weights, "added_tokens.json", {"[PAD]": 50_257})
    with pytest.raises(UsageError, match="50,258 tokens"):
        check_vocabulary(weights, 50_304, 50_304)


def test_a_damaged_tokenizer_is_not_skipped(weights: Path) -> None:
    for value in ({"model": {"vocab": [1]}, "added_tokens": []}, {"model": 3}, [1], {"a": [1]}):
        describe(weights, "tokenizer.json", value)
        with pytest.raises((UsageError, UntrustedError), match=r"tokenizer\.json: "):
            check_vocabulary(weights, 50_257, 50_304)
    weights.with_name("tokenizer.json").unlink()
    describe(weights, "vocab.json", {"a": [1], "b": None})
    with pytest.raises(UsageError, match=r"vocab\.json: a vocabulary of 2 tokens"):
        check_vocabulary(weights, 50_257, 50_304)
    for value in (None, "50257", [1]):
        describe(weights, "config.json", {"vocab_size": value})
        with pytest.raises(UntrustedError, match=r"config\.json: vocab_size is "):
            check_vocabulary(weights, 50_257, 50_304)
