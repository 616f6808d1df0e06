"""Copies of the state in memory: what an earlier start left there is resumed from."""

import os
import shutil
from pathlib import Path

import pytest

from tests.training.runs import UNFORESEEN, Failure, folder_of, records
from toolkit.checkpoint import copies
from toolkit.config import load_run_config
from toolkit.errors import UsageError
from toolkit.training import worker

pytestmark = pytest.mark.usefixtures("fresh_accelerate", "unlaunched")

KEYS = ("training.steps=6", "training.checkpoint_every=0", "training.peer_copy_every=2")


@pytest.fixture(autouse=True)
def memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "memory"
    folder.mkdir()
    monkeypatch.setattr(copies, "MEMORY", folder)
    return folder


def curve(run_file: Path) -> list[tuple[float, ...]]:
    found = records(folder_of(run_file), "train")
    return [(r["step"], r["loss"], r["grad_norm"]) for r in found]


def end_state(run_file: Path) -> bytes:
    return (folder_of(run_file) / "checkpoints/step_00000006/rank_00000.safetensors").read_bytes()


def test_a_run_goes_on_from_its_copies_bit_for_bit_and_gives_their_memory_back(
    run_file: Path, memory: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["--config", str(run_file), *KEYS]
    assert worker.main([*words, "training.peer_copy_every=0"]) == 0
    straight, state = curve(run_file), end_state(run_file)
    folder_of(run_file).rename(run_file.parent / "straight")
    assert worker.main(words, [Failure(UNFORESEEN, after=5)]) == 1
    # Of the two copies that were made, the newer one.
    assert [path.name for path in memory.glob("*/*/step_*")] == ["step_00000004"]
    assert not list((folder_of(run_file) / "checkpoints").glob("*"))
    capsys.readouterr()
    assert worker.main(words) == 0
    printed = capsys.readouterr().out
    assert "saved step 4 from the copies in memory" in printed
    assert "step_00000004 after 4 steps" in printed
    assert curve(run_file) == straight
    assert end_state(run_file) == state
    assert list(memory.iterdir()) == []


def test_a_damaged_copy_is_skipped(
    run_file: Path, memory: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["--config", str(run_file), *KEYS, "training.checkpoint_every=3"]
    assert worker.main(words, [Failure(UNFORESEEN, after=4)]) == 1
    (part,) = memory.glob("*/*/step_00000004/rank_*")
    data = bytearray(part.read_bytes())
    data[-1] ^= 1
    part.write_bytes(data)
    assert worker.main(words) == 0
    printed = capsys.readouterr().out
    assert "step_00000004/rank_00000.safetensors is not what was written" in printed
    assert "step_00000003 after 3 steps" in printed


def test_copies_of_another_run_of_the_same_name_are_not_taken(
    run_file: Path, memory: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["--config", str(run_file), *KEYS]
    assert worker.main(words, [Failure(UNFORESEEN, after=5)]) == 1
    folder_of(run_file).rename(run_file.parent / "earlier")
    assert worker.main(words) == 0
    assert "from the copies in memory" not in capsys.readouterr().out


@pytest.mark.parametrize(
    ("cause", "is_removed"), [("none", False), ("gone", True), ("old", True), ("held", False)]
)
def test_copies_of_a_run_that_is_not_started_again_go_when_another_starts(
    run_file: Path, memory: Path, monkeypatch: pytest.MonkeyPatch, cause: str, is_removed: bool
) -> None:
    words = ["--config", str(run_file), *KEYS]
    assert worker.main(words, [Failure(UNFORESEEN, after=5)]) == 1
    (left,) = memory.iterdir()
    # By the process that made them, which is this one and not over.
    if cause != "held":
        _end_of_process(left)
    if cause == "gone":
        shutil.rmtree(folder_of(run_file))
    if cause in ("old", "held"):
        monkeypatch.setattr(copies, "KEPT_S", -1.0)
    assert worker.main([*words, "run_name=another", "training.peer_copy_every=0"]) == 0
    assert left.exists() is not is_removed


def _end_of_process(left: Path) -> None:
    for descriptor in Path("/proc/self/fd").iterdir():
        if descriptor.is_symlink() and descriptor.readlink() == left:
            os.close(int(descriptor.name))


def test_too_little_memory_ends_the_run_or_not_as_configured(
    run_file: Path, memory: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    memory.rmdir()
    memory.write_text("no folder")
    words = ["--config", str(run_file), *KEYS]
    assert worker.main(words) == 3
    assert worker.main([*words, "training.on_save_error=warn"]) == 0
    assert capsys.readouterr().out.count("the run goes on without this copy") == 2


def test_copies_without_checkpoints_are_refused(run_file: Path) -> None:
    with pytest.raises(UsageError, match=r"training\.peer_copy_every 2 needs checkpoints"):
        load_run_config(run_file, ["training.peer_copy_every=2"])
