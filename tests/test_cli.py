import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

import toolkit.training.start
from toolkit import __version__, cli
from toolkit.training.run_folder import end_start, write_summary

ROOT = Path(__file__).parents[1]

HELP = """
import sys
import typer
from typer.testing import CliRunner
from toolkit.cli import app

def verbs(command, words=()):
    yield words
    for name, below in getattr(command, "commands", {}).items():
        yield from verbs(below, (*words, name))

results = {" ".join(w): CliRunner().invoke(app, [*w, "--help"]) for w in verbs(
    typer.main.get_command(app))}
heavy = {"torch", "accelerate", "deepspeed", "transformers", "numpy", "tiktoken"}
groups = {"", "bench", "data", "checkpoint"}
print({verb: result.exit_code for verb, result in results.items()})
print([verb for verb, result in results.items() if "Usage:" not in result.output])
print([verb for verb, result in results.items()
       if verb not in groups and "Example: toolkit " + verb not in result.output])
print([verb for verb, result in results.items()
       if CliRunner().invoke(app, [*verb.split(), "-h"]).output != result.output])
print(sorted(heavy & sys.modules.keys()))
"""


def test_help_of_every_verb_imports_nothing_heavy() -> None:
    result = subprocess.run(
        [sys.executable, "-c", HELP], capture_output=True, text=True, check=True, cwd=ROOT
    )
    codes, silent, without_example, without_h, heavy = map(
        yaml.safe_load, result.stdout.splitlines()
    )
    assert {"", "train", "check", "summary", "data", "data prepare", "data verify"} <= codes.keys()
    assert set(codes.values()) == {0}
    assert silent == without_example == without_h == []
    assert heavy == []


def test_whatever_has_a_main_runs_as_a_module() -> None:
    """Else `python -m` would do nothing, and end as if all were well."""
    code = {path: path.read_text() for path in (ROOT / "toolkit").rglob("*.py")}
    with_main = {path for path, text in code.items() if "\ndef main(" in text}
    assert ROOT / "toolkit" / "cli.py" in with_main
    assert [path for path in with_main if '\nif __name__ == "__main__":' not in code[path]] == []


@pytest.mark.parametrize("module", ["toolkit", "toolkit.cli", "toolkit.training.worker"])
def test_a_module_without_arguments_is_wrong_usage(module: str) -> None:
    words = [sys.executable, "-m", module]
    done = subprocess.run(words, capture_output=True, text=True, cwd=ROOT, check=False)
    assert done.returncode == 2
    assert "usage: " in (done.stdout + done.stderr).lower()


def test_the_shell_completes_verbs_and_options() -> None:
    def completed(*words: str) -> list[str]:
        asked = {"COMP_WORDS": " ".join(words), "COMP_CWORD": str(len(words) - 1)}
        env = {**os.environ, **asked, "_TOOLKIT_COMPLETE": "complete_bash", "PYTHONPATH": str(ROOT)}
        program = "import sys; sys.argv = ['toolkit']; from toolkit.cli import main; main()"
        done = subprocess.run(
            [sys.executable, "-c", program], env=env, capture_output=True, text=True, check=True
        )
        return done.stdout.split()

    assert completed("toolkit", "gen") == ["generate"]
    assert completed("toolkit", "data", "prepare", "--skip") == ["--skip-bad"]


class Ran:
    """What the installed program printed and returned."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
        self._monkeypatch = monkeypatch
        self._capsys = capsys

    def __call__(self, *words: str | Path) -> "Ran":
        self._monkeypatch.setattr(sys, "argv", ["toolkit", *map(str, words)])
        with pytest.raises(SystemExit) as caught:
            cli.main()
        self.code = caught.value.code
        self.out, self.err = self._capsys.readouterr()
        return self


@pytest.fixture
def toolkit_program(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Ran:
    return Ran(monkeypatch, capsys)


def test_the_version_is_printed(toolkit_program: Ran) -> None:
    ran = toolkit_program("--version")
    assert (ran.code, ran.out) == (0, f"toolkit {__version__}\n")


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["trian"], "no such command 'trian'. Did you mean 'train'?"),
        (["generate"], "missing argument 'RUN'."),
        (["generate", "a", "--tokens", "0"], "--tokens must be greater than or equal to 1"),
        (["generate", "a", "--tokens", "few"], "--tokens must be a valid integer"),
        (["plot", "a", "--by", "day"], "invalid value for '--by': 'day' is not one of 'step', "),
        (["runs", "--nope"], "no such option: --nope"),
        (["data", "prepare", "a", "--out"], "option '--out' requires an argument."),
    ],
)
def test_wrong_words_are_one_sentence_as_other_errors_are(
    toolkit_program: Ran, words: list[str], sentence: str
) -> None:
    ran = toolkit_program(*words)
    assert (ran.code, ran.out) == (2, "")
    (line,) = ran.err.splitlines()
    assert line.startswith(f"error: {sentence}")


def test_benchmarks_are_verbs_from_any_folder(tmp_path: Path) -> None:
    """And an error of theirs is as one of ours: it is their process that ends."""
    ran = subprocess.run(
        [sys.executable, "-m", "toolkit", "bench", "report", "nowhere"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
    )
    sentence = "error: nowhere/records.jsonl: no records, so there is nothing to report\n"
    assert (ran.returncode, ran.stderr) == (2, sentence)


def test_the_package_without_benchmarks_refuses_them(
    toolkit_program: Ran, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("toolkit.shipped.IS_INSTALLED", True)
    ran = toolkit_program("bench", "sweep", "cpu-quick", "--out", "runs")
    assert ran.code == 2
    assert ran.err.startswith("error: toolkit bench needs a checkout")


def test_an_error_is_one_sentence_and_its_code(toolkit_program: Ran, run_file: Path) -> None:
    ran = toolkit_program("summary", run_file)
    assert ran.code == 2
    (line,) = ran.err.splitlines()
    assert line.startswith(f"error: {run_file.parent / 'runs' / 'tiny'} ")
    assert ran.out == ""


def test_an_error_of_trust_has_a_code_of_its_own(toolkit_program: Ran, run_file: Path) -> None:
    shard = run_file.parent / "train" / "shard_000000.bin"
    shard.write_bytes(shard.read_bytes()[:-2])
    ran = toolkit_program("train", "--strategy", "single", "--config", run_file)
    assert ran.code == 3
    assert ran.err.startswith(f"error: {shard}: ")


def test_check_reports_what_is_good(toolkit_program: Ran, run_file: Path) -> None:
    ran = toolkit_program("check", run_file, ROOT / "configs" / "accelerate" / "ddp.yaml")
    assert ran.code == 0
    assert ran.err == ""
    run, launch, pair = ran.out.splitlines()
    assert run.startswith(f"{run_file}: run configuration, 12,016 parameters")
    assert launch.endswith("strategy ddp, num_processes 2")
    assert "4 sequences x 32 tokens x 2 micro-steps x 2 ranks" in pair


def test_check_reports_what_is_wrong_and_still_what_is_good(
    toolkit_program: Ran, run_file: Path
) -> None:
    bad = run_file.with_name("bad.yaml")
    bad.write_text(run_file.read_text().replace("steps:", "stepps:"))
    ran = toolkit_program("check", run_file, bad)
    assert ran.code == 2
    assert ran.out.startswith(f"{run_file}: run configuration")
    assert str(bad) in ran.err
    assert "did you mean 'training.steps'?" in ran.err


def test_an_unknown_strategy_has_a_suggestion(toolkit_program: Ran, run_file: Path) -> None:
    ran = toolkit_program("train", "--strategy", "fsdp", "--config", run_file)
    assert ran.code == 2
    assert ran.err == "error: unknown strategy 'fsdp'; did you mean 'fsdp2'?\n"


def test_train_takes_overrides_and_returns_the_runs_code(
    toolkit_program: Ran, run_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = run_file.parent / "runs" / "other"

    def run(command: list[str]) -> int:
        folder.mkdir(parents=True, exist_ok=True)
        end_start(folder, {"exit": 6, "reason": "put in by the test"})
        return 1

    monkeypatch.setattr(toolkit.training.start, "run_launcher", run)
    words = ["--strategy", "ddp", "--num-processes", "4", "--config", str(run_file)]
    ran = toolkit_program("train", *words, "run_name=other")
    assert ran.code == 6
    assert "--num_processes 4" in ran.out
    assert ran.out.endswith("run_name=other\n")
    assert toolkit_program("train", *words, "run_name=other", "--quiet").out == ""


def test_summary_prints_its_lines(toolkit_program: Ran, run_file: Path) -> None:
    folder = run_file.parent / "runs" / "tiny"
    folder.mkdir(parents=True)
    step = {"kind": "train", "step": 1, "loss": 6.2, "tokens": 512}
    (folder / "metrics.jsonl").write_text(json.dumps(step) + "\n")
    summary = {"exit": 0, "reason": "done", "parameters": 1, "strategy": "ddp", "world_size": 2}
    write_summary(folder, {**summary, "tokens_per_s": None})
    ran = toolkit_program("summary", run_file)
    assert ran.code == 0
    assert ran.out.splitlines()[0] == "done: 1 step, 512 tokens, 1 parameter, ddp on 2"


def test_no_folder_is_called_tilde(
    toolkit_program: Ran, run_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home, here = tmp_path / "home", tmp_path / "here"
    for folder in (home, here):
        folder.mkdir()
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.chdir(here)
    (home / "a.txt").write_text("Some words.")
    (home / "tiny.yaml").write_text(run_file.read_text())
    assert toolkit_program("data", "prepare", "~/a.txt", "--out=~/train").code == 0
    assert toolkit_program("data", "verify", "~/train").code == 0
    words = ["output_dir=~/runs", "data.train=~/no_shards"]
    ran = toolkit_program("train", "--strategy", "single", "--config=~/tiny.yaml", *words)
    assert ran.err == (
        f"error: '{home}/no_shards' matches no shard; give a folder, a file or a pattern of them\n"
    )
    assert list(here.iterdir()) == []
