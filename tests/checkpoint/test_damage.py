"""Every damage to a checkpoint is noticed before anything of it is used."""

import hashlib
import random
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.checkpoint.saved import PARTS, newest, save, training_state
from toolkit.checkpoint.store import CheckpointStore, find_damage
from toolkit.checkpoint.tensors import Fingerprint
from toolkit.checkpoint.training_state import read_training_state
from toolkit.errors import UntrustedError


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
def test_a_damaged_checkpoint_is_skipped_by_name(
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
    checkpoint = store.commit(3, training_state(3).to_json(), listed, keep_last=1)
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
        read_training_state(tmp_path)
