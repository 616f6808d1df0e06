import random
from itertools import pairwise

import pytest

from toolkit.data.cuts import MAX_RUN, PIECE, last_cut, overlong_run, pieces
from toolkit.data.vocabulary import build_vocabulary

# What words, numbers, contractions and white space are made of, with the awkward kinds of space.
ALPHABET = [*" \n\t\r\x0b\x1c\x85\xa0\u3000\u2028", *"aZé字1²'!\u0301🎉", "'s", "'ll", "  ", " \n"]


@pytest.mark.parametrize("seed", range(10))
def test_a_text_cut_everywhere_it_may_be_encodes_as_the_whole(seed):
    vocabulary = build_vocabulary()
    choose = random.Random(seed)
    cuts = 0
    for _ in range(100):
        text = "".join(choose.choices(ALPHABET, k=60))
        cut = [0, *reversed(list(all_cuts(text))), len(text)]
        cuts += len(cut) - 2
        parts = [text[start:stop] for start, stop in pairwise(cut)]
        tokens = [token for part in parts for token in vocabulary.encode_ordinary(part)]
        assert tokens == vocabulary.encode_ordinary(text)
    assert cuts > 200


def all_cuts(text):
    stop = last_cut(text)
    while stop is not None:
        yield stop
        stop = last_cut(text, 0, stop)


def test_a_cut_elsewhere_changes_the_tokens():
    vocabulary = build_vocabulary()
    assert vocabulary.encode_ordinary("a ") + vocabulary.encode_ordinary(
        "word"
    ) != vocabulary.encode_ordinary("a word")


def test_pieces_of_ordinary_text_encode_as_the_whole():
    vocabulary = build_vocabulary()
    text = "It's a truth universally acknowledged,\n  that 1 or 2 -- or more -- may err.\n" * 700
    parts = list(pieces(text))
    assert len(parts) > 5
    tokens = [token for part in parts for token in vocabulary.encode_ordinary(part)]
    assert tokens == vocabulary.encode_ordinary(text)


def test_cuts_only_before_a_space_or_line_break():
    assert last_cut("ab cd ef") == 5
    assert last_cut("ab\r\ncd") is None
    assert last_cut("ab\xa0 cd") is None
    assert last_cut("ab\x1ccd") is None
    assert last_cut("abcdef") is None
    assert last_cut("ab cd ef", 0, 4) == 2


def test_long_words_are_cut_inside_and_nothing_is_lost():
    text = "start " + "^" * (3 * PIECE) + " end " * PIECE
    parts = list(pieces(text))
    assert "".join(parts) == text
    assert max(map(len, parts)) == PIECE


def test_finds_where_an_overlong_run_begins():
    assert overlong_run("word " * MAX_RUN) is None
    assert overlong_run("word " + "a" * (MAX_RUN - 1)) is None
    assert overlong_run("word" + " " + "a" * MAX_RUN + " word") == 4
    assert overlong_run("word\n" * 10**6 + "a" * (MAX_RUN + 9)) == 5 * 10**6 - 1
    assert overlong_run(" " * (MAX_RUN + 1)) == 0
