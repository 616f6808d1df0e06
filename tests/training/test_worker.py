import gzip
import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml

from tests.data.shard_files import write_llmc
from toolkit.engines import strategies
from toolkit.training import loop as loop_module
from toolkit.training import worker
from toolkit.training.step import StepResult, train_step

pytestmark = pytest.mark.usefixtures("fresh_accelerate", "unlaunched")


@pytest.fixture
def unlaunched(monkeypatch: pytest.MonkeyPatch) -> None:
    """No launcher's variables, and no launch file however these tests were started."""
    for key in os.environ:
        if key in ("RANK", "LOCAL_RANK", "WORLD_SIZE") or key.startswith("ACCELERATE_"):
            monkeypatch.delenv(key)
    monkeypatch.setattr(worker, "find_launch_file", lambda: None)


def summary(run_file: Path, name: str = "summary.json") -> dict[str, Any]:
    path = run_file.parent / "runs" / run_file.stem / name
    found: dict[str, Any] = json.loads(path.read_text())
    return found


def last_start(run_file: Path) -> dict[str, Any]:
    return summary(run_file, "last_start.json")


def fail(*arguments: object, **options: object) -> None:
    raise ValueError("unforeseen")


class Refused:
    """What a worker that could not start said and returned."""

    def __init__(self, capsys: pytest.CaptureFixture[str], run_file: Path, *overrides: str) -> None:
        self.code = worker.main(["--config", str(run_file), *overrides])
        printed = capsys.readouterr()
        assert printed.out == ""
        assert "Traceback" not in printed.err
        (line,) = printed.err.splitlines()
        assert line.startswith("error: ")
        self.sentence = line.removeprefix("error: ")


def test_an_unknown_key_is_named_with_what_was_meant(
    capsys: pytest.CaptureFixture[str], run_file: Path
) -> None:
    run_file.write_text(run_file.read_text().replace("warmup_steps", "warmup_step"))
    refused = Refused(capsys, run_file)
    assert refused.code == 2
    assert str(run_file) in refused.sentence
    assert "optimizer.warmup_step'; did you mean 'optimizer.warmup_steps'?" in refused.sentence


@pytest.mark.parametrize(
    ("override", "words"),
    [
        ("training.step=3", "did you mean 'training.steps'?"),
        ("training.steps=many", "training.steps"),
        ("training.steps", "has no '='"),
        ("batch.micro_batch_size=5", "batch.micro_batch_size to one of"),
        ("accumulation=sharded", "impossible with strategy 'single'"),
    ],
)
def test_a_bad_override_is_named(
    capsys: pytest.CaptureFixture[str], run_file: Path, override: str, words: str
) -> None:
    refused = Refused(capsys, run_file, override)
    assert refused.code == 2
    assert words in refused.sentence


def test_a_missing_file_is_named(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    refused = Refused(capsys, tmp_path / "nothing.yaml")
    assert refused.code == 2
    assert str(tmp_path / "nothing.yaml") in refused.sentence


def test_missing_data_is_named_and_in_the_summary(
    capsys: pytest.CaptureFixture[str], run_file: Path
) -> None:
    refused = Refused(capsys, run_file, "data.train=no/such/folder")
    assert refused.code == 2
    assert "'no/such/folder' matches no shard" in refused.sentence
    assert summary(run_file)["exit"] == 2
    assert summary(run_file)["reason"] == refused.sentence


def test_an_id_outside_the_vocabulary_is_named_with_its_limit_and_file(
    capsys: pytest.CaptureFixture[str], run_file: Path
) -> None:
    shard = write_llmc(run_file.parent / "train" / "shard_000000.bin", [1] * 600 + [512] + [2] * 99)
    refused = Refused(capsys, run_file)
    assert refused.code == 2
    assert f"{shard}: token 600 (byte 2224) is id 512" in refused.sentence
    assert "a vocabulary of 512 ends at id 511" in refused.sentence


def test_too_little_data_is_refused_with_both_numbers(
    capsys: pytest.CaptureFixture[str], run_file: Path
) -> None:
    write_llmc(run_file.parent / "train" / "shard_000000.bin", [1] * 512)
    refused = Refused(capsys, run_file)
    assert refused.code == 2
    assert "one step needs 513 tokens" in refused.sentence
    assert "there are 512" in refused.sentence


def test_a_damaged_shard_is_not_trusted(capsys: pytest.CaptureFixture[str], run_file: Path) -> None:
    shard = run_file.parent / "train" / "shard_000000.bin"
    shard.write_bytes(shard.read_bytes()[:-2])
    refused = Refused(capsys, run_file)
    assert refused.code == summary(run_file)["exit"] == 3
    assert f"{shard}: the header has 2500 tokens" in refused.sentence


def test_a_file_where_the_run_folder_goes_is_named(
    capsys: pytest.CaptureFixture[str], run_file: Path
) -> None:
    (run_file.parent / "runs").write_text("in the way")
    refused = Refused(capsys, run_file)
    assert refused.code == 2
    assert str(run_file.parent / "runs" / "tiny") in refused.sentence


def test_a_launch_of_another_kind_is_refused(
    capsys: pytest.CaptureFixture[str], run_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ACCELERATE_MIXED_PRECISION", "fp8")
    refused = Refused(capsys, run_file)
    assert refused.code == 2
    assert "mixed_precision 'fp8' is not supported" in refused.sentence


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
    folder = run_file.parent / "runs" / run_file.stem
    assert yaml.safe_load((folder / "launch.yaml").read_text())["notes"] == notes
    assert summary(run_file)["steps"] == 2


def test_an_engine_that_is_not_installed_is_refused(
    capsys: pytest.CaptureFixture[str], run_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ACCELERATE_USE_DEEPSPEED", "true")
    monkeypatch.setattr(strategies, "find_spec", lambda name: None)
    refused = Refused(capsys, run_file)
    assert refused.code == 2
    assert "pip install scaling-toolkit[deepspeed]" in refused.sentence


def test_a_launch_file_that_does_not_go_with_the_run_is_refused(
    capsys: pytest.CaptureFixture[str], run_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shipped = Path(__file__).parents[2] / "configs" / "accelerate" / "single.yaml"
    launch_file = run_file.parent / "launch.yaml"
    launch_file.write_text(shipped.read_text() + "mixed_precision: bf16\n")
    monkeypatch.setattr(worker, "find_launch_file", lambda: launch_file)
    refused = Refused(capsys, run_file)
    assert refused.code == 2
    assert str(launch_file) in refused.sentence
    assert "mixed_precision: bf16, the run has precision: fp32" in refused.sentence


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
    monkeypatch.setattr(worker, "_memory_of", lambda device: 2**20)
    assert worker.main(["--config", str(run_file), "run_name=b", "--quiet"]) == 0
    (line,) = capsys.readouterr().out.splitlines()
    assert line.startswith("warning: the estimate")


def test_log_every_thins_the_console_and_no_record(
    run_file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["training.steps=5", "training.log_every=3"]
    assert worker.main(["--config", str(run_file), *words]) == 0
    lines = [line for line in capsys.readouterr().out.splitlines() if line.startswith("step ")]
    assert [line.split()[1] for line in lines] == ["3/5", "5/5"]
    assert re.search(r" \| epoch 0\.\d\d \| \d+ s left$", lines[0])
    assert "left" not in lines[1]
    records = (run_file.parent / "runs" / "tiny" / "metrics.jsonl").read_text().splitlines()
    assert [json.loads(line)["step"] for line in records] == [1, 2, 3, 4, 5]


def test_steps_are_profiled_into_the_runs_folder(
    run_file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["training.steps=5", "training.profile=[3, 4]"]
    assert worker.main(["--config", str(run_file), *words]) == 0
    folder = run_file.parent / "runs" / "tiny" / "profile"
    assert f"profile    {folder}" in capsys.readouterr().out
    with gzip.open(folder / "rank_00000.json.gz") as file:
        events = json.load(file)["traceEvents"]
    # Two updates, each with one kernel over all parameters of a group.
    steps = [e for e in events if e.get("name") == "Optimizer.step#AdamW.step"]
    assert len(steps) == 2
    rows = (folder / "rank_00000.txt").read_text().splitlines()
    assert len([row for row in rows if row.strip() and "---" not in row]) == 1 + 10 + 1


TWO_STEPS = ("training.steps=2", "training.checkpoint_every=2")


def test_a_start_that_trains_nothing_leaves_what_the_run_did(
    run_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Refused, failed in its first step, or with nothing to do."""
    assert worker.main(["--config", str(run_file), *TWO_STEPS]) == 0
    done = summary(run_file)
    assert done["peak_memory_bytes"] is not None
    described = run_file.parent / "runs" / run_file.stem / "config.yaml"
    config = described.read_text()
    assert worker.main(["--config", str(run_file), *TWO_STEPS, "seed=9"]) == 2
    assert "seed" in last_start(run_file)["reason"]
    assert (summary(run_file), described.read_text()) == (done, config)
    with monkeypatch.context() as patched:
        patched.setattr(loop_module, "train_step", fail)
        assert worker.main(["--config", str(run_file), "training.steps=3"]) == 1
    assert last_start(run_file)["reason"] == "rank 0, step 3: ValueError: unforeseen"
    assert summary(run_file) == done
    assert worker.main(["--config", str(run_file), *TWO_STEPS]) == 0
    assert summary(run_file) == done
    assert last_start(run_file) == {"exit": 0, "reason": "done"}


def test_a_start_that_trains_has_a_summary_of_its_own(
    run_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Though it fails later; and one that is killed leaves no other's behind."""
    assert worker.main(["--config", str(run_file), *TWO_STEPS]) == 0
    path = run_file.parent / "runs" / run_file.stem / "summary.json"
    there: list[bool] = []

    def fail_later(*arguments: Any, **settings: Any) -> StepResult:
        there.append(path.exists())
        if len(there) == 2:
            raise ValueError("unforeseen")
        return train_step(*arguments, **settings)

    monkeypatch.setattr(loop_module, "train_step", fail_later)
    assert worker.main(["--config", str(run_file), "training.steps=4"]) == 1
    assert there == [True, False]
    found = summary(run_file)
    assert (found["exit"], found["steps"]) == (1, 3)
    assert found["reason"] == "rank 0, step 4: ValueError: unforeseen"


def test_a_run_that_is_set_back_is_what_it_was_until_it_has_trained_again(
    run_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    keys = ("training.steps=2", "training.checkpoint_every=1")
    assert worker.main(["--config", str(run_file), *keys]) == 0
    finished = summary(run_file)
    folder = run_file.parent / "runs" / run_file.stem
    (folder / "checkpoints" / "step_00000002" / "manifest.json").unlink()
    with monkeypatch.context() as broken:
        broken.setattr(loop_module, "train_step", fail)
        assert worker.main(["--config", str(run_file), *keys]) == 1
    assert summary(run_file) == finished
    assert json.loads((folder / "last_start.json").read_text())["exit"] == 1
    assert worker.main(["--config", str(run_file), *keys, "training.stop_at=2"]) == 0
    assert summary(run_file)["steps"] == 2
    assert json.loads((folder / "last_start.json").read_text())["exit"] == 0


def test_a_failure_nobody_foresaw_has_its_traceback_and_its_rank(
    capsys: pytest.CaptureFixture[str], run_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loop_module, "train_step", fail)
    assert worker.main(["--config", str(run_file)]) == 1
    assert summary(run_file)["reason"] == "rank 0, step 1: ValueError: unforeseen"
    assert "rank 0, step 1: failed\nTraceback" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (torch.OutOfMemoryError("Tried 2 GiB. GPU 0 has 1.\nMore"), "Tried 2 GiB. GPU 0 has 1"),
        (
            RuntimeError("DefaultCPUAllocator: can't allocate memory: (Cannot allocate memory)"),
            "DefaultCPUAllocator: can't allocate memory: (Cannot allocate memory)",
        ),
        (MemoryError(), "the allocator gave no reason"),
    ],
)
def test_out_of_memory_says_what_to_lower(
    capsys: pytest.CaptureFixture[str],
    run_file: Path,
    monkeypatch: pytest.MonkeyPatch,
    error: Exception,
    reason: str,
) -> None:
    def fail(*arguments: object, **options: object) -> None:
        raise error

    monkeypatch.setattr(loop_module, "train_step", fail)
    assert worker.main(["--config", str(run_file)]) == 5
    sentence = capsys.readouterr().err
    assert f"out of memory on rank 0: {reason}; estimated " in sentence
    assert "lower batch.micro_batch_size" in sentence
    assert "Traceback" not in sentence
    assert summary(run_file)["exit"] == 5


def test_an_estimate_above_the_device_is_said_before_the_first_step(
    capsys: pytest.CaptureFixture[str], run_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(worker, "_memory_of", lambda device: 2**20)
    assert worker.main(["--config", str(run_file), "training.steps=2"]) == 0
    said = capsys.readouterr().out
    assert "exceeds the 1 MiB there are: " in said
    assert said.index("warning: the estimate of") < said.index("step     1/2")
    assert summary(run_file)["estimated_peak_memory_bytes"] > 2**20
    monkeypatch.setattr(worker, "_memory_of", lambda device: 2**40)
    assert worker.main(["--config", str(run_file), "run_name=fits", "training.steps=2"]) == 0
    assert "warning" not in capsys.readouterr().out


def test_only_the_first_rank_speaks_at_once(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    waited: list[float] = []
    monkeypatch.setattr(worker.time, "sleep", waited.append)
    worker._speak(0, "wrong")
    assert waited == []
    worker._speak(3, "wrong")
    assert waited == [worker._FIRST_WORD_S]
    assert capsys.readouterr().err == "error: wrong\nerror: rank 3: wrong\n"


def test_what_the_first_rank_said_the_others_leave_unsaid(
    capsys: pytest.CaptureFixture[str], run_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(worker, "_FIRST_WORD_S", 0.0)
    monkeypatch.setenv("WORLD_SIZE", "2")
    said = {}
    # Rank 1 fails as rank 0 did, and then in another way.
    for rank, data in (("0", "none"), ("1", "none"), ("1", "nothing")):
        monkeypatch.setenv("RANK", rank)
        monkeypatch.setenv("LOCAL_RANK", rank)
        assert worker.main(["--config", str(run_file), f"data.train={data}"]) == 2
        said[rank, data] = capsys.readouterr().err
    assert said["0", "none"].startswith("error: 'none' matches no shard")
    assert said["1", "none"] == ""
    assert said["1", "nothing"].startswith("error: rank 1: 'nothing' matches no shard")


def test_a_host_without_memory_left_is_exit_code_5(run_file, monkeypatch, capsys):
    """On a CPU PyTorch raises a plain RuntimeError."""

    def exhausted(*arguments, **settings):
        raise RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate memory: tried 9 TB")

    monkeypatch.setattr("toolkit.training.loop.train_step", exhausted)
    assert worker.main(["--config", str(run_file)]) == 5
    said = capsys.readouterr().err
    assert said.startswith("error: out of memory on rank 0:")
    assert "Traceback" not in said
