from pathlib import Path

import pytest
from typer.testing import CliRunner

from toolkit.cli import app
from toolkit.config import load_run_config
from toolkit.config.reference import reference
from toolkit.errors import UsageError
from toolkit.shipped import ROOT

PRESETS = sorted(path.stem for path in (ROOT / "configs" / "train").glob("*.yaml"))


def invoke(*words: str) -> str:
    done = CliRunner().invoke(app, list(words), catch_exceptions=False)
    assert done.exit_code == 0
    return done.stdout


@pytest.mark.parametrize("preset", PRESETS)
def test_what_is_written_is_the_preset(tmp_path: Path, preset: str) -> None:
    file = tmp_path / f"{preset}.yaml"
    invoke("init", str(file), "--preset", preset, "seed=7", "data.train=[a, b]")
    shipped = ROOT / "configs" / "train" / file.name
    assert load_run_config(file) == load_run_config(shipped, ["seed=7", "data.train=[a, b]"])


def test_every_key_says_what_it_means(tmp_path: Path) -> None:
    file = tmp_path / "own.yaml"
    invoke("init", str(file))
    text = " ".join(file.read_text().replace("#", " ").split())
    silent = {"run_name", "model.n_layer", "model.n_head", "model.n_embd"}
    for key in reference():
        is_there = " ".join(key.meaning.replace("`", "").split()) in text
        assert is_there == (key.name not in silent), key
    assert load_run_config(file).run_name == "own"


def test_a_file_that_is_there_stays(tmp_path: Path) -> None:
    file = tmp_path / "own.yaml"
    file.write_text("seed: 1\n")
    with pytest.raises(UsageError, match=r"own\.yaml: is there already"):
        CliRunner().invoke(app, ["init", str(file)], catch_exceptions=False)
    assert file.read_text() == "seed: 1\n"


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["init", "own.yaml", "--preset", "gpt3"], "unknown preset 'gpt3'; there are demo, gpt2"),
        (["init", "own.txt"], r"ends in \.yaml"),
        (["init", "no/where/own.yaml"], "cannot be written: No such file"),
        (["init", "own.yaml", "batch.size=1"], "batch.size"),
        (["config", "optimizer.learning_rate"], "did you mean 'optimizer.lr'"),
    ],
)
def test_what_cannot_be_is_one_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: list[str], says: str
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UsageError, match=says):
        CliRunner().invoke(app, words, catch_exceptions=False)
    assert list(tmp_path.iterdir()) == []


def test_a_key_a_section_and_all_keys_are_shown() -> None:
    assert invoke("config", "optimizer.lr") == (
        "optimizer.lr: 0.0006\n  Learning rate at the end of warm-up.\n"
        "  number, above 0, at most 1,000\n"
    )
    assert invoke("config", "batch").count("batch.") == 2
    names = [line.partition(":")[0] for line in invoke("config").splitlines() if line[0] != " "]
    assert names == [key.name for key in reference()]
