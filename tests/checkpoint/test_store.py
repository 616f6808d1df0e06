"""Which checkpoints there are, and in which order they come and go."""

import hashlib
import json
import os
from pathlib import Path

import pytest

from tests.checkpoint.saved import PARTS, newest, save, training_state
from toolkit.checkpoint.store import CheckpointStore
from toolkit.checkpoint.training_state import read_training_state


def steps(store: CheckpointStore) -> list[int]:
    return [read_training_state(path).step for path in store.committed()]


def test_a_commit_gives_the_folder_its_name_and_all_its_files(store: CheckpointStore) -> None:
    save(store, 7)
    (path,) = store.folder.iterdir()
    assert path.name == "step_00000007"
    assert {file.name for file in path.iterdir()} == {*PARTS, "state.json", "manifest.json"}
    assert read_training_state(path) == training_state(7)
    assert store.newest_good() == (path, [])


OF_TODAY = {
    "version": 2,
    "step": 300,
    "data_step": 302,
    "updates": 299,
    "tokens": 4_915_200,
    "moments": True,
    "loss_scale": {"scale": 65536.0, "growth": 12.0},
    "strategy": "zero2",
    "world_size": 2,
    "shapes": {"transformer.wte.weight": [50304, 8]},
    "config": {"seed": 1337},
    "data": {"tokens": 1_000_000},
    "versions": {"torch": "2.13.0"},
}


def test_the_names_in_the_file_stay(tmp_path: Path) -> None:
    """Checkpoints that are there already are read."""
    (tmp_path / "state.json").write_text(json.dumps(OF_TODAY))
    state = read_training_state(tmp_path)
    assert (state.step, state.data_step, state.updates) == (300, 302, 299)
    assert json.loads(state.to_json()) == OF_TODAY


def test_the_manifest_has_size_and_hash_of_every_other_file(store: CheckpointStore) -> None:
    save(store, 1)
    (path,) = store.committed()
    manifest = json.loads((path / "manifest.json").read_text())
    assert manifest["files"].keys() == {*PARTS, "state.json"}
    for name, entry in manifest["files"].items():
        data = (path / name).read_bytes()
        assert entry == {"bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()}


def test_the_newest_are_kept(store: CheckpointStore) -> None:
    save(store, 8, 9, 10, 100, keep_last=3)
    assert steps(store) == [9, 10, 100]


def test_steps_beyond_eight_digits_are_still_in_order(store: CheckpointStore) -> None:
    save(store, 99_999_999, 100_000_000, keep_last=1)
    assert steps(store) == [100_000_000]


def test_a_step_is_replaced_when_it_is_saved_again(store: CheckpointStore) -> None:
    save(store, 3, 3)
    assert steps(store) == [3]
    assert store.newest_good()[1] == []


def test_a_damaged_later_checkpoint_does_not_crowd_out_the_one_just_saved(
    store: CheckpointStore,
) -> None:
    save(store, 3, 6)
    (newest(store) / PARTS[0]).write_bytes(b"")
    save(store, 5, keep_last=1)
    good, _ = store.newest_good()
    assert good is not None
    assert good.name == "step_00000005"


def test_what_crashes_left_is_ignored_and_then_cleared_away(store: CheckpointStore) -> None:
    save(store, 3)
    store.begin(6)
    (store.partial(6) / PARTS[0]).write_bytes(b"half")
    (store.folder / "step_00000001.deleted").mkdir()
    assert steps(store) == [3]
    assert store.newest_good() == (store.folder / "step_00000003", [])
    store.begin(9)
    assert {path.name for path in store.folder.iterdir()} == {
        "step_00000003",
        "step_00000009.partial",
    }
    store.abandon(9)
    assert [path.name for path in store.folder.iterdir()] == ["step_00000003"]


def test_other_names_are_ignored(store: CheckpointStore) -> None:
    save(store, 3)
    (store.folder / "step_latest").mkdir()
    (store.folder / "step_00000009").write_text("a file")
    (store.folder / "notes.partial").mkdir()
    store.begin(4)
    assert (store.folder / "notes.partial").is_dir()
    assert steps(store) == [3]


def test_no_checkpoint_at_all_is_no_problem(store: CheckpointStore) -> None:
    assert store.newest_good() == (None, [])
    store.begin(1)
    assert store.newest_good() == (None, [])


def test_nothing_is_deleted_before_the_new_one_has_its_name(
    store: CheckpointStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    save(store, 3, keep_last=1)
    rename = Path.rename

    def failing(own: Path, target: Path) -> Path:
        if own.suffix == ".partial":
            raise OSError("put in by the test")
        return rename(own, target)

    monkeypatch.setattr(Path, "rename", failing)
    with pytest.raises(OSError, match="put in"):
        save(store, 6, keep_last=1)
    monkeypatch.undo()
    assert store.newest_good() == (store.folder / "step_00000003", [])


def test_what_is_committed_is_on_the_disk_before_it_has_its_name(
    store: CheckpointStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    order: list[str] = []
    fsync, rename = os.fsync, Path.rename

    def synced(descriptor: int) -> None:
        order.append(Path(os.readlink(f"/proc/self/fd/{descriptor}")).name)
        fsync(descriptor)

    def renamed(own: Path, target: Path) -> Path:
        order.append(f"rename {own.name}")
        return rename(own, target)

    monkeypatch.setattr(os, "fsync", synced)
    monkeypatch.setattr(Path, "rename", renamed)
    save(store, 3)
    assert order == [
        ".state.json.tmp",
        "step_00000003.partial",
        ".manifest.json.tmp",
        "step_00000003.partial",
        "rename step_00000003.partial",
        "checkpoints",
    ]
