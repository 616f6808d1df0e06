"""Multiple choice: which of several endings a model finds the likeliest.

Two ways to score HellaSwag (Zellers et al. 2019) are in use. llm.c takes the context as it is and
divides an ending's log-likelihood by its tokens (`dev/data/hellaswag.py`); lm-eval cleans the text,
puts the activity before it and divides by the ending's characters
(`lm_eval/tasks/hellaswag/utils.py`). Both also report the plain sum as `acc`.
"""

import json
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F

from toolkit.engines.ranks import Ranks
from toolkit.errors import UsageError
from toolkit.inference.trained import Trained

_BRACKETS = re.compile(r"\[.*?\]")


@dataclass(frozen=True)
class Question:
    """A context, endings that may follow it after a space, and the number of the right one."""

    context: str
    endings: list[str]
    answer: int


@dataclass(frozen=True)
class Style:
    """How a line of a file becomes a question, and what a log-likelihood is divided by."""

    name: str
    question: Callable[[dict[str, Any]], Question]
    per: str


def _plain(fields: dict[str, Any]) -> Question:
    return Question(fields["context"], fields["choices"], int(fields["answer"]))


def _llm_c(fields: dict[str, Any]) -> Question:
    return Question(fields["ctx"], fields["endings"], int(fields["label"]))


def _lm_eval(fields: dict[str, Any]) -> Question:
    context = f"{fields['activity_label']}: {fields['ctx_a']} {fields['ctx_b'].capitalize()}"
    return Question(_clean(context), [*map(_clean, fields["endings"])], int(fields["label"]))


def _clean(text: str) -> str:
    return _BRACKETS.sub("", text.strip().replace(" [title]", ". ")).replace("  ", " ")


TASKS = {
    "hellaswag": (Style("llm.c", _llm_c, "token"), Style("lm-eval", _lm_eval, "character")),
    "choice": (Style("token", _plain, "token"), Style("character", _plain, "character")),
}
"""The styles that each task is scored in."""


@dataclass(frozen=True)
class Accuracy:
    """Right answers by the summed log-likelihood, and by that divided by an ending's length."""

    style: str
    per: str
    questions: int
    right: int
    right_normalised: int

    @property
    def acc(self) -> float:
        """Share of right answers."""
        return self.right / self.questions

    @property
    def acc_norm(self) -> float:
        """Share of right answers, normalised."""
        return self.right_normalised / self.questions


def score(trained: Trained, task: str, file: Path, ranks: Ranks) -> list[Accuracy]:
    """Answer every question of a JSON-lines file, in each style of the task.

    Args:
        trained: the model.
        task: one of `TASKS`.
        file: of `hellaswag`, as published; of `choice`, with `context`, `choices` and `answer`.
        ranks: that share the questions.

    Raises:
        UsageError: the file cannot be read, or a line is no question; names both.
    """
    found = []
    for style in TASKS[task]:
        questions = read_questions(file, style)
        right = torch.zeros(2, dtype=torch.float64)
        for question in questions[ranks.rank :: ranks.world_size]:
            right += torch.tensor(_answers(trained, question, style))
        plain, normalised = (int(count) for count in ranks.sum(right).tolist())
        found.append(Accuracy(style.name, style.per, len(questions), plain, normalised))
    return found


def read_questions(file: Path, style: Style) -> list[Question]:
    """Return the questions of a file; raises as `score`."""
    try:
        lines = file.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"{file}: cannot be read: {error}") from None
    questions = [_question(f"{file}, line {n}", line, style) for n, line in _numbered(lines)]
    if not questions:
        raise UsageError(f"{file}: holds no question")
    return questions


def _numbered(lines: Sequence[str]) -> Iterator[tuple[int, str]]:
    return ((number, line) for number, line in enumerate(lines, 1) if line.strip())


def _question(place: str, line: str, style: Style) -> Question:
    try:
        question = style.question(json.loads(line))
        texts = [question.context, *question.endings]
    except KeyError as error:
        raise UsageError(f"{place}: lacks the field {error}") from None
    except (ValueError, TypeError, AttributeError) as error:
        raise UsageError(f"{place}: no question of multiple choice: {error}") from None
    if not all(isinstance(text, str) and text for text in texts):
        raise UsageError(f"{place}: context and endings must be texts that are not empty")
    if not 0 <= question.answer < len(question.endings):
        raise UsageError(f"{place}: answer {question.answer} of {len(question.endings)} endings")
    return question


def _answers(trained: Trained, question: Question, style: Style) -> list[float]:
    """1 or 0 for the plain choice and the normalised one."""
    rows = [trained.encode(f" {ending}") for ending in question.endings]
    sums = torch.tensor(log_likelihoods(trained, trained.encode(question.context), rows))
    characters = [len(ending) for ending in question.endings]
    lengths = torch.tensor([*map(len, rows)] if style.per == "token" else characters)
    chosen = (int(sums.argmax()), int((sums / lengths).argmax()))
    return [float(choice == question.answer) for choice in chosen]


@torch.inference_mode()
def log_likelihoods(
    trained: Trained, context: Sequence[int], endings: Sequence[Sequence[int]]
) -> list[float]:
    """Return log p of each ending after a context; what is too long loses its beginning."""
    found = []
    for ending in endings:
        tokens = torch.tensor([*context, *ending], device=trained.device)
        tokens = tokens[-(trained.sizes.block_size + 1) :]
        hidden = trained.model.transformer(tokens[None, :-1])
        targets = tokens[1:][-len(ending) :]
        logits = trained.model.lm_head(hidden[0, -len(targets) :]).float()
        found.append(-float(F.cross_entropy(logits, targets, reduction="sum")))
    return found
