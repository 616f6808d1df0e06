import json
import subprocess
from pathlib import Path

import pytest
import yaml

from toolkit.config import RunConfig, load_run_config
from toolkit.errors import UsageError
from toolkit.training.run_folder import (
    begin_start,
    end_start,
    finish_start,
    make_run_folder,
    read_last_start,
    read_summary,
    run_folder,
    sole_user,
    write_description,
    write_summary,
)


def config_in(folder: Path) -> RunConfig:
    return RunConfig(output_dir=str(folder / "runs"), run_name="a.b")


def test_the_folder_is_named_by_output_dir_and_run_name(tmp_path: Path) -> None:
    assert run_folder(config_in(tmp_path)) == tmp_path / "runs" / "a.b"


def test_the_folder_is_made_once_and_then_kept(tmp_path: Path) -> None:
    folder = make_run_folder(config_in(tmp_path))
    (folder / "metrics.jsonl").touch()
    assert make_run_folder(config_in(tmp_path)) == folder
    assert (folder / "metrics.jsonl").exists()


def test_a_file_in_the_way_is_named(tmp_path: Path) -> None:
    (tmp_path / "runs").write_text("no folder")
    with pytest.raises(UsageError, match=r"runs/a\.b: cannot be made a run folder"):
        make_run_folder(config_in(tmp_path))


def test_a_summary_comes_back_and_the_newest_counts(tmp_path: Path) -> None:
    assert read_summary(tmp_path) is None
    for code in (6, 0):
        write_summary(tmp_path, {"exit": code, "final_loss": None})
    assert read_summary(tmp_path) == {"exit": 0, "final_loss": None}
    assert [path.name for path in tmp_path.iterdir()] == ["summary.json"]


def test_a_summary_that_cannot_be_written_leaves_the_last_one(tmp_path: Path) -> None:
    write_summary(tmp_path, {"exit": 6})
    with pytest.raises(TypeError):
        write_summary(tmp_path, {"exit": object()})
    assert read_summary(tmp_path) == {"exit": 6}


def test_the_description_says_what_ran_where(tmp_path: Path) -> None:
    config = config_in(tmp_path)
    launch = {"config_file": "ddp.yaml", "strategy": "ddp", "world_size": 2}
    write_description(tmp_path, config, launch, {"type": "cpu", "cpu_count": 2})
    assert load_run_config(tmp_path / "config.yaml") == config
    assert yaml.safe_load((tmp_path / "launch.yaml").read_text()) == launch
    environment = json.loads((tmp_path / "environment.json").read_text())
    assert environment["devices"] == {"type": "cpu", "cpu_count": 2}
    assert {"torch", "accelerate", "deepspeed", "scaling-toolkit"} <= environment["packages"].keys()
    assert environment.keys() == {"python", "platform", "packages", "devices", "git"}


def test_the_commit_is_noted_and_whether_the_code_was_changed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    answers = {"rev-parse": "0123abc\n", "status": " M toolkit/train.py\n"}

    def git(command: list[str], **options: object) -> subprocess.CompletedProcess[str]:
        return subprocess.CompletedProcess(command, 0, stdout=answers[command[3]])

    monkeypatch.setattr(subprocess, "run", git)
    write_description(tmp_path, config_in(tmp_path), {}, {})
    environment = json.loads((tmp_path / "environment.json").read_text())
    assert environment["git"] == {"commit": "0123abc", "changed": True}


@pytest.mark.parametrize(
    "error", [FileNotFoundError("git"), subprocess.CalledProcessError(128, "git")]
)
def test_code_outside_git_is_described_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    def no_git(command: list[str], **options: object) -> None:
        raise error

    monkeypatch.setattr(subprocess, "run", no_git)
    write_description(tmp_path, config_in(tmp_path), {}, {})
    assert json.loads((tmp_path / "environment.json").read_text())["git"] is None


def test_a_second_start_in_a_folder_is_refused_while_the_first_runs(tmp_path: Path) -> None:
    with sole_user(tmp_path):
        second = pytest.raises(UsageError, match="another process is at work there")
        with second, sole_user(tmp_path):
            pass
    with sole_user(tmp_path):
        pass


DONE = {"exit": 0, "reason": "done", "steps": 4}
REFUSED = {"exit": 2, "reason": "another seed", "steps": None}


def how(summary: dict[str, object]) -> dict[str, object]:
    return {key: summary[key] for key in ("exit", "reason")}


def test_the_first_failure_keeps_the_summary(tmp_path: Path) -> None:
    begin_start(tmp_path)
    assert end_start(tmp_path, {"exit": 6, "reason": "cause"})
    assert not end_start(tmp_path, {"exit": 1, "reason": "consequence"})
    assert read_summary(tmp_path) == read_last_start(tmp_path) == {"exit": 6, "reason": "cause"}
    begin_start(tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_a_start_that_fails_changes_nothing_of_a_run_that_has_steps(tmp_path: Path) -> None:
    (tmp_path / "metrics.jsonl").write_text("{}\n")
    for before in (DONE, {**DONE, "exit": 75, "reason": "stopped"}):
        write_summary(tmp_path, before)
        begin_start(tmp_path)
        assert end_start(tmp_path, REFUSED)
        assert read_summary(tmp_path) == before
        assert read_last_start(tmp_path) == how(REFUSED)
        begin_start(tmp_path)
        assert read_last_start(tmp_path) is None


def test_a_start_with_nothing_to_do_leaves_the_figures(tmp_path: Path) -> None:
    """Of whatever made them; the run is done now, even if the start before was ended."""
    (tmp_path / "metrics.jsonl").write_text("{}\n")
    write_summary(tmp_path, {**DONE, "exit": 75, "reason": "stopped", "strategy": "zero3"})
    begin_start(tmp_path)
    finish_start(tmp_path, {**DONE, "strategy": "ddp"})
    assert read_summary(tmp_path) == {**DONE, "strategy": "zero3"}
    assert read_last_start(tmp_path) == how(DONE)


@pytest.mark.parametrize("text", ["[]", "5", "{}", '{"exit": "0"}'])
def test_what_is_no_summary_is_one_sentence(tmp_path: Path, text: str) -> None:
    (tmp_path / "summary.json").write_text(text)
    with pytest.raises(UsageError, match=r"summary\.json is no summary of a run"):
        read_summary(tmp_path)
    (tmp_path / "metrics.jsonl").write_text("{}\n")
    begin_start(tmp_path)
    assert read_summary(tmp_path) is None


def test_a_folder_in_the_place_of_a_file_is_one_sentence(tmp_path: Path, run_file: Path) -> None:
    (tmp_path / "summary.json").mkdir()
    with pytest.raises(UsageError, match=r"summary\.json: cannot be read: Is a directory"):
        read_summary(tmp_path)
    with pytest.raises(UsageError, match=r"summary\.json: cannot be replaced: "):
        begin_start(tmp_path)
    (tmp_path / "config.yaml").mkdir()
    with pytest.raises(UsageError, match=r"config\.yaml: cannot be written: Is a directory"):
        write_description(tmp_path, load_run_config(run_file), {}, {})


def test_a_torn_summary_is_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "summary.json").write_text('{"exit": ')
    with pytest.raises(UsageError, match=r"summary\.json is not JSON"):
        read_summary(tmp_path)
