"""The experiment on the learning rate: what differs between its runs, and what was committed."""

import json

import pytest

from benchmarks.learning_rate import RESULTS, RUN, TOKENS, mean_losses, overrides_of, rows
from tests.samples import ROOT
from toolkit.config import load_run_config


@pytest.mark.parametrize(("rule", "lr"), [("none", 3e-3), ("square root", 6e-3)])
def test_runs_differ_by_the_rate_alone(rule: str, lr: float) -> None:
    row = {"seed": 1, "multiple": 4, "rule": rule}
    run = load_run_config(RUN, overrides_of(row, TOKENS))
    recipe = load_run_config(RUN, overrides_of(row | {"multiple": 1, "rule": "none"}, TOKENS))
    assert run.optimizer.lr == pytest.approx(lr)
    assert run.batch.tokens_per_step == 4 * recipe.batch.tokens_per_step
    assert run.training.steps * run.batch.tokens_per_step == TOKENS
    assert recipe.training.steps * recipe.batch.tokens_per_step == TOKENS


def test_every_run_is_committed_with_its_picture() -> None:
    record = json.loads((RESULTS / "learning_rate.json").read_text())
    done = record["runs"]
    assert all(any(row.items() <= other.items() for other in done) for row in rows())
    assert record["tokens"] == TOKENS
    without, ruled = (dict(mean_losses(done, rule)) for rule in ("none", "square root"))
    assert without[1] == ruled[1]
    assert (RESULTS / "learning_rate.svg").read_text().count("<path") > 20


def test_the_document_has_the_losses() -> None:
    text = (ROOT / "docs" / "planning.md").read_text()
    for row in json.loads((RESULTS / "learning_rate.json").read_text())["runs"]:
        assert f"{row['loss']:.3f}" in text, row
