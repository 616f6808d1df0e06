"""`~` is the home folder wherever a path is given, whether or not a shell has seen it."""

from pathlib import Path

import pytest

from toolkit.home import expand_words


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("HOME", str(tmp_path))
    return tmp_path


@pytest.mark.parametrize("word", ["~/x", "~", "--out=~/x", "--config=~", "--out=~/a b"])
def test_a_word_or_value_may_begin_with_it(home: Path, word: str) -> None:
    assert expand_words(["data", word, "y"]) == ["data", word.replace("~", str(home)), "y"]


@pytest.mark.parametrize("word", ["a~", "x/~/y", "./~", "--out=x~", "--out=./~/x", "-~", "run=~/x"])
def test_elsewhere_it_is_a_character(word: str) -> None:
    assert expand_words([word]) == [word]


def test_another_programs_words_are_its_own() -> None:
    words = ["audit", "--", "python", "--out=~/x", "~"]
    assert expand_words(words) == words
