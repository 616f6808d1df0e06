"""Multiple choice, on a file made by hand whose scores are worked out beside it."""

import math
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from tests.inference.conftest import write_lines
from toolkit.data.tokenizers import open_tokenizer
from toolkit.engines.ranks import Ranks
from toolkit.errors import UsageError
from toolkit.inference.choices import TASKS, log_likelihoods, read_questions, score
from toolkit.inference.trained import Trained

ALONE = Ranks(0, 1, torch.device("cpu"))

# The model gives each of these tokens this probability wherever it stands:
#   " red" 1/4   " so" 1/8   " yellow" 1/16   " cat" 1/64
PROBABILITIES = {" red": 1 / 4, " so": 1 / 8, " yellow": 1 / 16, " cat": 1 / 64}

# In bits, by sum / by token / by character (without the space before the ending):
#   "red"          2        2        2/3
#   "yellow"       4        4        4/6
#   "so so"        3+3=6    3        6/5
#   "cat"          6        6        2
#   "red red red"  2*3=6    2        6/11
# First line:  sum -> "red"; token -> "red", a tie with "red red red" goes to the first;
#              character -> "red red red".
# Second line: sum -> "yellow" (4 < 6); token -> "so so" (3 < 4); character -> "yellow".
LINES = (
    {
        "ind": 1,
        "activity_label": "Colours",
        "ctx_a": "A sky.",
        "ctx_b": "it is",
        "ctx": "A sky. it is",
        "label": 2,
        "endings": ["red", "yellow", "red red red", "cat"],
    },
    {
        "ind": 2,
        "activity_label": "Colours",
        "ctx_a": "A [header] sun.",
        "ctx_b": "",
        "ctx": "A [header] sun.",
        "label": 1,
        "endings": ["cat", "so so", "yellow", "cat cat"],
    },
)


@pytest.fixture
def trained(unigram: Callable[[dict[int, float]], Trained]) -> Trained:
    gpt2 = open_tokenizer()
    return unigram({gpt2.encode(word)[0]: p for word, p in PROBABILITIES.items()})


def test_the_words_are_one_token_each() -> None:
    assert all(len(open_tokenizer().encode(word)) == 1 for word in PROBABILITIES)


def test_log_likelihoods_are_the_worked_ones(trained: Trained) -> None:
    endings = [trained.encode(f" {ending}") for ending in ("red", "so so", "red red red")]
    bits = [-found / math.log(2) for found in log_likelihoods(trained, [1, 2], endings)]
    assert bits == pytest.approx([2, 6, 6], rel=1e-5)


def test_hellaswag_in_both_normalisations(trained: Trained, tmp_path: Path) -> None:
    file = write_lines(tmp_path / "hellaswag.jsonl", *LINES)
    llm_c, lm_eval = score(trained, "hellaswag", file, ALONE)
    assert (llm_c.style, llm_c.acc, llm_c.acc_norm) == ("llm.c", 0.0, 0.5)
    assert (lm_eval.style, lm_eval.acc, lm_eval.acc_norm) == ("lm-eval", 0.0, 0.5)
    assert (llm_c.right_normalised, lm_eval.right_normalised) == (1, 1)
    first = write_lines(tmp_path / "first.jsonl", LINES[0])
    assert [found.acc_norm for found in score(trained, "hellaswag", first, ALONE)] == [0.0, 1.0]


def test_lm_eval_cleans_the_text_and_llm_c_does_not(tmp_path: Path) -> None:
    file = write_lines(tmp_path / "hellaswag.jsonl", *LINES)
    llm_c, lm_eval = (read_questions(file, style) for style in TASKS["hellaswag"])
    assert [found.context for found in llm_c] == ["A sky. it is", "A [header] sun."]
    assert [found.context for found in lm_eval] == ["Colours: A sky. It is", "Colours: A sun."]


def test_plain_multiple_choice(trained: Trained, tmp_path: Path) -> None:
    file = write_lines(
        tmp_path / "own.jsonl",
        {"context": "It was", "choices": ["cat", "red"], "answer": 1},
        {"context": "It was", "choices": ["yellow", "red red red"], "answer": 1},
    )
    per_token, per_character = score(trained, "choice", file, ALONE)
    assert (per_token.acc, per_token.acc_norm) == (0.5, 1.0)
    assert (per_character.acc, per_character.acc_norm) == (0.5, 1.0)


def test_ranks_share_the_questions(trained: Trained, tmp_path: Path) -> None:
    file = write_lines(tmp_path / "hellaswag.jsonl", *LINES)

    class Recording(Ranks):
        def sum(self, values):  # type: ignore[no-untyped-def]
            return values

    shares = [
        score(trained, "hellaswag", file, Recording(rank, 2, torch.device("cpu")))
        for rank in (0, 1)
    ]
    assert [found.right_normalised for share in shares for found in share] == [0, 1, 1, 0]


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("{", "line 1: no question of multiple choice"),
        ('{"context": "a", "choices": ["b"]}', "lacks the field 'answer'"),
        ('{"context": "a", "choices": ["b"], "answer": 4}', "answer 4 of 1 endings"),
        ('{"context": "a", "choices": [""], "answer": 0}', "texts that are not empty"),
        ("", "holds no question"),
    ],
)
def test_a_line_that_is_no_question_is_named(
    trained: Trained, tmp_path: Path, line: str, says: str
) -> None:
    file = tmp_path / "own.jsonl"
    file.write_text(line)
    with pytest.raises(UsageError, match=says):
        score(trained, "choice", file, ALONE)
