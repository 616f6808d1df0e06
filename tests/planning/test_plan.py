"""`toolkit plan` on the command line."""

import json

import pytest
from typer.testing import CliRunner

from toolkit.cli import app
from toolkit.errors import UsageError

XL = ["plan", "--preset", "gpt2-xl", "--tokens-per-step", "524288"]


def test_json_has_the_names_of_the_contract() -> None:
    result = CliRunner().invoke(app, [*XL, "--gpus", "8", "--strategies", "ddp,fsdp2", "--json"])
    document = json.loads(result.stdout)
    assert set(document) == {"question", "candidates", "best", "rows", "reason"}
    assert document["best"] == document["rows"][0]
    assert document["best"]["fits"]
    assert document["best"]["tokens_per_step"] == 524_288


def test_what_does_not_fit_is_named_with_the_least() -> None:
    words = [*XL, "--gpus", "2", "--gpu", "RTX 5090", "--strategies", "ddp", "--json"]
    document = json.loads(CliRunner().invoke(app, words).stdout)
    assert document["best"] is None
    assert "nothing fits RTX 5090: the least is ddp" in document["reason"]


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["--gpus", "16"], "--between-machines 400Gbit"),
        (["--gpus", "8", "--gpu", "H1OO"], "unknown 'H1OO'"),
        (["--gpus", "8", "--gpu", "T4"], "its speed is not known"),
        (["--gpus", "7"], "the nearest that works is --tokens-per-step"),
        (["--gpus", "8", "precision=fp32"], "precision=bf16"),
        ([], "only one can be solved for"),
    ],
)
def test_bad_questions_get_a_sentence(words: list[str], sentence: str) -> None:
    result = CliRunner().invoke(app, [*XL, *words])
    assert isinstance(result.exception, UsageError)
    assert sentence in str(result.exception)
