from pathlib import Path

import pytest
from typer.testing import CliRunner

from toolkit.cli import app
from toolkit.errors import UsageError


def written(*words: str, stdin: str | None = None) -> str:
    done = CliRunner().invoke(app, ["generate", *words], input=stdin, catch_exceptions=False)
    assert done.exit_code == 0
    return done.stdout


def test_a_prompt_is_continued_from_an_argument_or_standard_input(run: Path) -> None:
    text = written(str(run), "--prompt", "To be", "--tokens", "8", "--temperature", "0")
    assert text.startswith("To be")
    assert len(text) > len("To be\n")
    piped = written(str(run), "--prompt", "-", "--tokens", "8", "--temperature", "0", stdin="To be")
    assert piped == text


def test_samples_differ_and_are_told_apart(run: Path) -> None:
    words = (str(run), "--tokens", "8", "--temperature", "9", "--seed", "3")
    first, second = written(*words, "--samples", "2").split("\n---\n")
    assert first != second
    assert written(*words) == first + "\n"


def test_the_runs_configuration_names_the_run(run_file: Path, run: Path) -> None:
    words = ("--prompt", "a", "--tokens", "4", "--temperature", "0")
    assert written(str(run_file), *words) == written(str(run), *words)


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["--top-p", "2"], "--top-p must be above 0"),
        (["--step", "7"], "has no checkpoint of step 7"),
        (["--tokenizer", "no_such"], "unknown tokenizer 'no_such'"),
        (["--tokenizer", "no_such.json"], "no_such.json: cannot be read"),
    ],
)
def test_what_cannot_be_is_one_sentence(run: Path, words: list[str], says: str) -> None:
    with pytest.raises(UsageError, match=says):
        CliRunner().invoke(app, ["generate", str(run), *words], catch_exceptions=False)
