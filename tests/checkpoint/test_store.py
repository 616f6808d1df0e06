import hashlib
import json
import os
import random
from collections.abc import Callable
from pathlib import Path

import pytest

from toolkit.checkpoint.position import Position, read_position
from toolkit.checkpoint.store import CheckpointStore, find_damage
from toolkit.checkpoint.tensors import Fingerprint
from toolkit.errors import UntrustedError

PARTS = ("rank_00000.safetensors", "rank_00001.safetensors")


def position(step: int) -> Position:
    return Position(
        step=step,
        data_step=step,
        updates=step,
        tokens=512 * step,
        moments=True,
        loss_scale=None,
        strategy="single",
        world_size=1,
        shapes={"weight": [4]},
        config={"seed": 1},
        data={"tokens": 1},
        versions={},
    )


@pytest.fixture
def store(tmp_path: Path) -> CheckpointStore:
    return CheckpointStore(tmp_path / "checkpoints")


def save(store: CheckpointStore, *steps: int, keep_last: int = 9) -> None:
    for step in steps:
        store.begin(step)
        parts = {}
        for name in PARTS:
            data = f"part {name} of {step}".encode()
            (store.partial(step) / name).write_bytes(data)
            parts[name] = Fingerprint(len(data), hashlib.sha256(data).hexdigest())
        store.commit(step, position(step).to_json(), parts, keep_last=keep_last)


def steps(store: CheckpointStore) -> list[int]:
    return [read_position(path).step for path in store.committed()]


def test_a_commit_gives_the_folder_its_name_and_all_its_files(store: CheckpointStore) -> None:
    save(store, 7)
    (path,) = store.folder.iterdir()
    assert path.name == "step_00000007"
    assert {file.name for file in path.iterdir()} == {*PARTS, "state.json", "manifest.json"}
    assert read_position(path) == position(7)
    assert store.newest_good() == (path, [])


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
    flip_a_byte(newest(store) / PARTS[0])
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


def newest(store: CheckpointStore) -> Path:
    return store.committed()[-1]


def flip_a_byte(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[0] ^= 1
    path.write_bytes(bytes(data))


def truncate(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-1])


def empty(path: Path) -> None:
    path.write_bytes(b"")


def link(path: Path) -> None:
    elsewhere = path.parents[2] / "elsewhere"
    path.rename(elsewhere)
    path.symlink_to(elsewhere)


def from_another_step(path: Path) -> None:
    path.write_bytes((path.parents[1] / "step_00000003" / path.name).read_bytes())


FILES = (*PARTS, "state.json", "manifest.json")
DAMAGES: list[Callable[[Path], None]] = [
    flip_a_byte,
    truncate,
    empty,
    Path.unlink,
    from_another_step,
]


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_checkpoint_is_passed_over_by_name(
    store: CheckpointStore, name: str, damage: Callable[[Path], None]
) -> None:
    save(store, 3, 6)
    damage(newest(store) / name)
    good, problems = store.newest_good()
    assert good == store.folder / "step_00000003"
    assert any(str(newest(store)) in problem for problem in problems)
    if damage is not from_another_step:
        assert str(newest(store) / name) in problems[0]


def test_every_flipped_bit_of_every_file_is_noticed(store: CheckpointStore) -> None:
    save(store, 3)
    for path in newest(store).iterdir():
        data = path.read_bytes()
        for place in range(len(data)):
            flipped = bytearray(data)
            flipped[place] ^= 1 << random.Random(place).randrange(8)
            path.write_bytes(bytes(flipped))
            assert list(find_damage(newest(store))), f"{path.name} byte {place}"
        path.write_bytes(data)
    assert list(find_damage(newest(store))) == []


def test_a_file_that_is_not_listed_is_damage(store: CheckpointStore) -> None:
    save(store, 3)
    (newest(store) / "rank_00002.safetensors").write_bytes(b"")
    (problem,) = find_damage(newest(store))
    assert "rank_00002.safetensors is not listed" in problem


def test_a_link_is_damage(store: CheckpointStore) -> None:
    save(store, 3)
    link(newest(store) / PARTS[0])
    (problem,) = find_damage(newest(store))
    assert f"{PARTS[0]} is missing" in problem


def test_another_steps_folder_under_a_new_name_is_damage(store: CheckpointStore) -> None:
    save(store, 3)
    newest(store).rename(store.folder / "step_00000008")
    (problem,) = find_damage(newest(store))
    assert "holds the checkpoint of step 3" in problem


def test_all_damaged_is_an_error_that_names_each(store: CheckpointStore) -> None:
    save(store, 3, 6)
    for path in store.committed():
        truncate(path / PARTS[0])
    with pytest.raises(UntrustedError) as caught:
        store.newest_good()
    assert f"step_00000003/{PARTS[0]}" in str(caught.value)
    assert f"step_00000006/{PARTS[0]}" in str(caught.value)


@pytest.mark.parametrize("world_size", [1, 2, 3, 5])
def test_all_ranks_together_read_every_byte_once(store: CheckpointStore, world_size: int) -> None:
    save(store, 3)
    for name in (*PARTS, "state.json"):
        path = newest(store) / name
        flip_a_byte(path)
        found = [
            list(find_damage(newest(store), rank=rank, world_size=world_size))
            for rank in range(world_size)
        ]
        assert [problem for share in found for problem in share] == [
            f"{path} is not what was written: its SHA-256 differs"
        ]
        flip_a_byte(path)


@pytest.mark.parametrize(
    "text", ["[]", "{}", '{"files": 1}', '{"files": {"state.json": {"bytes": 1}}}', "[" * 100_000]
)
def test_a_manifest_of_another_form_is_damage(store: CheckpointStore, text: str) -> None:
    save(store, 3)
    (newest(store) / "manifest.json").write_text(text)
    with pytest.raises(UntrustedError, match=r"manifest\.json"):
        store.newest_good()


@pytest.mark.parametrize(
    "name", ["../outside", "{folder}/outside", ".metadata", "optim.pt", "a\0b"]
)
def test_a_manifest_lists_nothing_but_a_checkpoints_own_files(
    store: CheckpointStore, name: str
) -> None:
    """Written by the toolkit itself, so that the name alone can be the reason."""
    store.begin(3)
    name = name.format(folder=store.folder)
    data = b"x"
    listed = {name: Fingerprint(1, hashlib.sha256(data).hexdigest())}
    (store.folder / "outside").write_bytes(data)
    checkpoint = store.commit(3, position(3).to_json(), listed, keep_last=1)
    (problem,) = find_damage(checkpoint)
    assert "is no file of a checkpoint" in problem


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ('{"step": 1}', "is of version 1"),
        ('{"version": 99}', "is of version 99, this toolkit reads version 2"),
        ('{"version": 2, "step": 1}', "is no state"),
        ("[]", "cannot be read"),
        ("{", "cannot be read"),
    ],
)
def test_a_state_of_another_version_is_one_sentence(tmp_path: Path, text: str, words: str) -> None:
    (tmp_path / "state.json").write_text(text)
    with pytest.raises(UntrustedError, match=words):
        read_position(tmp_path)


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
