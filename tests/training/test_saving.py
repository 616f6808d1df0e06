"""When a run saves, and what it does when it cannot."""

import shutil
import signal
from pathlib import Path
from types import SimpleNamespace

import pytest

from tests.training.runs import Start
from toolkit.checkpoint import saver as saver_module
from toolkit.errors import Preempted, SaveError


def test_a_run_that_ends_saves_its_last_state_though_it_saves_none_on_the_way(
    start: Start, printed: list[str]
) -> None:
    loop = start("training.checkpoint_every=0")
    loop.fit()
    (saved,) = loop.store.committed()
    assert saved.name == "step_00000004"
    again = start("training.checkpoint_every=0", "training.steps=6")
    assert again.progress.step == 4
    start("run_name=early", "training.checkpoint_every=0", "training.stop_at=2").fit()
    assert any(line.startswith("saved ") and "early" in line for line in printed)


def test_a_run_that_is_never_to_save_does_not(start: Start) -> None:
    loop = start("training.checkpoint_every=never")
    loop.fit()
    assert loop.progress.step == 4
    assert loop.committed == []
    stopped = start("run_name=stopped", "training.checkpoint_every=never")
    stopped.stop.number = signal.SIGTERM
    with pytest.raises(Preempted, match="SIGTERM after step 1, which is not saved, as training"):
        stopped.fit()
    assert stopped.committed == []


def test_asynchronous_saving_writes_the_state_of_its_step(start: Start, printed: list[str]) -> None:
    sync, behind = (
        start(f"run_name=a-{on}", "training.checkpoint_every=1", f"training.async_save={on}")
        for on in ("false", "true")
    )
    sync.fit()
    behind.fit()
    for step in (2, 3, 4):
        first, second = (
            loop.store.folder / f"step_{step:08d}" / "rank_00000.safetensors"
            for loop in (sync, behind)
        )
        assert first.read_bytes() == second.read_bytes()
    assert any(line.startswith("saving step 1 meanwhile") for line in printed)


@pytest.mark.parametrize("asynchronous", ["false", "true"])
def test_a_full_disk_ends_the_run_or_not_as_it_says(
    start: Start, printed: list[str], monkeypatch: pytest.MonkeyPatch, asynchronous: str
) -> None:
    keys = ("training.checkpoint_every=1", f"training.async_save={asynchronous}")
    loop = start(*keys, "training.on_save_error=warn")
    full = OSError(28, "No space left on device")
    write = saver_module.write_tensors

    def fail(path: Path, entries: object) -> object:
        if loop.progress.step == 3 or path.parent.name == "step_00000003.partial":
            raise full
        return write(path, entries)  # type: ignore[arg-type]

    monkeypatch.setattr(saver_module, "write_tensors", fail)
    loop.fit()
    assert loop.committed == [
        "step_00000001",
        "step_00000002",
        "step_00000004",
    ]
    assert any("cannot be written: No space left on device; the run goes on" in s for s in printed)
    other = start("run_name=other", *keys)
    loop.progress.step = 0
    with pytest.raises(SaveError, match="No space left on device"):
        other.fit()
    assert [path.name for path in other.store.folder.iterdir()] == [
        "step_00000001",
        "step_00000002",
    ]


def test_too_little_space_is_known_before_anything_is_written(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    loop = start("training.checkpoint_every=1")
    monkeypatch.setattr(shutil, "disk_usage", lambda path: SimpleNamespace(free=1000))
    with pytest.raises(SaveError, match=r"needs 144,192 bytes, but 1,000 are free"):
        loop.fit()
    assert list(loop.store.folder.iterdir()) == []
