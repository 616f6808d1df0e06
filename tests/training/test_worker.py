"""One process, from its arguments to its exit code."""

import gzip
import json
import re
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pytest
import yaml

from tests.data.shard_files import write_llmc
from tests.training.runs import folder_of, summary
from toolkit.data.vocabulary import END_OF_TEXT
from toolkit.engines import process_group
from toolkit.errors import NonFiniteError, Preempted, ToolkitError, UntrustedError
from toolkit.training import memory, worker

pytestmark = pytest.mark.usefixtures("fresh_accelerate", "unlaunched")


@pytest.mark.parametrize("use_cpu", [True, False])
def test_a_launch_file_may_keep_a_run_off_the_gpus(
    run_file: Path, monkeypatch: pytest.MonkeyPatch, use_cpu: bool
) -> None:
    launch_file = run_file.parent / "launch.yaml"
    launch_file.write_text(f"distributed_type: 'NO'\nuse_cpu: {str(use_cpu).lower()}\n")
    monkeypatch.setattr(worker, "find_launch_file", lambda: launch_file)
    found = []
    monkeypatch.setattr(worker, "leave_to_the_run", lambda _, *, on_cpu: found.append(on_cpu))
    assert worker.main(["--config", str(run_file), "data.train=none"]) == 2
    assert found == [use_cpu]


def test_what_is_done_otherwise_than_written_is_noted_before_the_first_step(
    capsys: pytest.CaptureFixture[str], run_file: Path
) -> None:
    changes = ["optimizer.warmup_steps=10", "training.steps=2", "training.stop_at=3", "seed=1"]
    assert worker.main(["--config", str(run_file), *changes, "seed=2", "training.steps=2"]) == 0
    printed = capsys.readouterr().out
    notes = [line[11:] for line in printed.splitlines() if line.startswith("note ")]
    assert [note.split(",")[0] for note in notes] == [
        "override 'seed=1' is replaced by the later 'seed=2'",
        "optimizer.warmup_steps 10 is beyond training.steps 2: the run ends in warm-up",
        "training.stop_at 3 is beyond training.steps 2: the run ends after 2",
    ]
    assert printed.index("note ") < printed.index("step     1/2")
    assert "lr 2.00e-04" in printed
    folder = folder_of(run_file)
    assert yaml.safe_load((folder / "launch.yaml").read_text())["notes"] == notes
    assert summary(run_file)["steps"] == 2


HELP = """
import sys
from toolkit.training.worker import main
try:
    main(["--help"])
finally:
    heavy = {"torch", "accelerate", "deepspeed", "transformers", "numpy", "tiktoken"}
    print("imported", sorted(heavy & sys.modules.keys()))
"""


def test_help_imports_nothing_heavy() -> None:
    command = [sys.executable, "-c", HELP]
    result = subprocess.run(command, capture_output=True, text=True, check=True)
    assert "--config RUN.yaml" in result.stdout
    assert result.stdout.splitlines()[-1] == "imported []"


def test_without_a_configuration_the_usage_is_shown(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        worker.main([])
    assert caught.value.code == 2
    assert "--config" in capsys.readouterr().err


def test_a_good_run_ends_with_a_whole_summary(
    capsys: pytest.CaptureFixture[str], run_file: Path
) -> None:
    assert worker.main(["--config", str(run_file), "training.steps=2"]) == 0
    found = summary(run_file)
    assert list(found) == [
        "exit",
        "reason",
        "steps",
        "final_loss",
        "tokens_per_s",
        "peak_memory_bytes",
        "estimated_peak_memory_bytes",
        "strategy",
        "accumulation",
        "world_size",
        "parameters",
        "step_s",
        "step_parts_s",
        "predicted_step_s",
    ]
    assert (found["exit"], found["reason"], found["steps"]) == (0, "done", 2)
    assert (found["strategy"], found["world_size"]) == ("single", 1)
    assert found["parameters"] == 512 * 16 + 32 * 16 + (12 * 16**2 + 13 * 16) + 2 * 16
    printed = capsys.readouterr().out
    assert "1 x cpu, backend none" in printed or "1 x cuda" in printed
    assert "4 sequences x 32 tokens x 4 micro-steps x 1 rank" in printed
    assert re.search(r"^checks     \d+ checks passed \(--verbose shows each\)$", printed, re.M)
    assert "tied weights" not in printed


def test_verbose_shows_each_check_and_quiet_nothing_but_warnings(
    run_file: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert worker.main(["--config", str(run_file), "training.steps=1", "--verbose"]) == 0
    printed = capsys.readouterr().out
    assert "check      tied weights: one parameter" in printed
    assert "checks passed" not in printed
    monkeypatch.setattr(memory, "available_memory", lambda device: 2**20)
    assert worker.main(["--config", str(run_file), "run_name=b", "--quiet"]) == 0
    (line,) = capsys.readouterr().out.splitlines()
    assert line.startswith("warning: the estimate")


def test_documents_that_are_trained_and_validated_on_are_reported(
    run_file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_llmc(tmp_path / "a" / "a.bin", [END_OF_TEXT, *range(600), END_OF_TEXT, 1, 2])
    write_llmc(tmp_path / "b" / "b.bin", [END_OF_TEXT, 1, 2, END_OF_TEXT, *range(100)])
    words = ["--config", str(run_file), "--quiet", "training.steps=1", "model.vocab_size=50304"]
    train, val = f"data.train={tmp_path / 'a'}", f"data.val={tmp_path / 'b'}"
    assert worker.main([*words, train, val]) == 0
    shared = "warning: 1 of the 2 documents of data.val are also in data.train"
    assert capsys.readouterr().out.splitlines() == [shared]
    assert worker.main([*words, "run_name=b", "training.eval_every=never"]) == 0
    assert capsys.readouterr().out == ""


def test_log_every_thins_the_console_and_no_record(
    run_file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["training.steps=5", "training.log_every=3"]
    assert worker.main(["--config", str(run_file), *words]) == 0
    lines = [line for line in capsys.readouterr().out.splitlines() if line.startswith("step ")]
    assert [line.split()[1] for line in lines] == ["3/5", "5/5"]
    assert re.search(r" \| epoch 0\.\d\d \| \d+ s left$", lines[0])
    assert "left" not in lines[1]
    records = (folder_of(run_file) / "metrics.jsonl").read_text().splitlines()
    assert [json.loads(line)["step"] for line in records] == [1, 2, 3, 4, 5]


def test_steps_are_profiled_into_the_runs_folder(
    run_file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["training.steps=5", "training.profile=[3, 4]"]
    assert worker.main(["--config", str(run_file), *words]) == 0
    folder = folder_of(run_file) / "profile"
    assert f"profile    {folder}" in capsys.readouterr().out
    with gzip.open(folder / "rank_00000.json.gz") as file:
        events = json.load(file)["traceEvents"]
    # Two updates, each with one kernel over all parameters of a group.
    steps = [e for e in events if e.get("name") == "Optimizer.step#AdamW.step"]
    assert len(steps) == 2
    rows = (folder / "rank_00000.txt").read_text().splitlines()
    assert len([row for row in rows if row.strip() and "---" not in row]) == 1 + 10 + 1


def test_only_the_first_rank_reports_at_once(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    waited: list[float] = []
    monkeypatch.setattr(worker.time, "sleep", waited.append)
    worker.report_error(0, "wrong")
    assert waited == []
    worker.report_error(3, "wrong")
    assert waited == [worker._FIRST_RANK_S]
    assert capsys.readouterr().err == "error: wrong\nerror: rank 3: wrong\n"


def test_what_the_first_rank_reported_the_others_do_not(
    capsys: pytest.CaptureFixture[str], run_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(worker, "_FIRST_RANK_S", 0.0)
    monkeypatch.setenv("WORLD_SIZE", "2")
    printed = {}
    # Rank 1 fails as rank 0 did, and then in another way.
    for rank, data in (("0", "none"), ("1", "none"), ("1", "nothing")):
        monkeypatch.setenv("RANK", rank)
        monkeypatch.setenv("LOCAL_RANK", rank)
        assert worker.main(["--config", str(run_file), f"data.train={data}"]) == 2
        printed[rank, data] = capsys.readouterr().err
    assert printed["0", "none"].startswith("error: 'none' matches no shard")
    assert printed["1", "none"] == ""
    assert printed["1", "nothing"].startswith("error: rank 1: 'nothing' matches no shard")


@pytest.mark.parametrize(
    ("error", "ends"),
    [
        (None, True),
        (Preempted("stopped by SIGTERM"), True),
        (NonFiniteError("the loss is nan"), True),
        (UntrustedError("one rank's own"), False),
    ],
)
def test_the_group_is_left_where_all_ranks_end(
    error: Exception | None, ends: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A rank that fails alone must not wait for the others there."""
    ended: list[bool] = []
    monkeypatch.setattr(process_group, "leave_process_group", lambda: ended.append(True))
    with suppress(ToolkitError), worker._leaving_together():
        if error is not None:
            raise error
    assert ended == [True] * ends
