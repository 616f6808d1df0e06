import hashlib
import json
from pathlib import Path

import pytest

from toolkit.checkpoint.store import CheckpointStore, Position, find_damage, read_position
from toolkit.errors import UntrustedError

WEIGHTS = "parameters.safetensors"
MOMENTS = "exp_avg.safetensors"


def position(step: int) -> Position:
    return Position(
        step=step,
        tokens=512 * step,
        seed=1,
        strategy="single",
        world_size=1,
        model={"n_layer": 1},
        optimizer="adamw",
    )


@pytest.fixture
def store(tmp_path: Path) -> CheckpointStore:
    return CheckpointStore(tmp_path / "checkpoints")


def save(store: CheckpointStore, *steps: int, keep_last: int = 9) -> None:
    for step in steps:
        partial = store.begin(step)
        (partial / WEIGHTS).write_bytes(b"weights of %d" % step)
        (partial / MOMENTS).write_bytes(b"moments of %d" % step)
        store.commit(partial, position(step), keep_last=keep_last)


def steps(store: CheckpointStore) -> list[int]:
    return [read_position(path).step for path in store.committed()]


def test_a_commit_gives_the_folder_its_name_and_all_its_files(store: CheckpointStore) -> None:
    save(store, 7)
    (path,) = store.folder.iterdir()
    assert path.name == "step_00000007"
    assert {file.name for file in path.iterdir()} == {
        WEIGHTS,
        MOMENTS,
        "state.json",
        "manifest.json",
    }
    assert read_position(path) == position(7)
    assert store.newest_good() == (path, [])


def test_the_manifest_has_size_and_hash_of_every_other_file(store: CheckpointStore) -> None:
    save(store, 1)
    (path,) = store.committed()
    manifest = json.loads((path / "manifest.json").read_text())
    assert manifest.keys() == {WEIGHTS, MOMENTS, "state.json"}
    assert manifest[WEIGHTS] == {
        "bytes": 12,
        "sha256": hashlib.sha256(b"weights of 1").hexdigest(),
    }


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
    flip_a_byte(newest(store) / WEIGHTS)
    save(store, 5, keep_last=1)
    good, _ = store.newest_good()
    assert good is not None
    assert good.name == "step_00000005"


def test_what_a_crash_left_half_written_is_ignored(store: CheckpointStore) -> None:
    save(store, 3)
    (store.begin(6) / WEIGHTS).write_bytes(b"half")
    assert steps(store) == [3]
    assert store.newest_good() == (store.folder / "step_00000003", [])
    assert list(store.begin(6).iterdir()) == []


def test_other_names_are_ignored(store: CheckpointStore) -> None:
    save(store, 3)
    (store.folder / "step_latest").mkdir()
    (store.folder / "step_00000009").write_text("a file")
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


def garble(path: Path) -> None:
    path.write_text(path.read_text()[:-20])


@pytest.mark.parametrize(
    ("name", "damage"),
    [
        (WEIGHTS, flip_a_byte),
        (WEIGHTS, truncate),
        (WEIGHTS, Path.unlink),
        (MOMENTS, flip_a_byte),
        ("state.json", flip_a_byte),
        ("manifest.json", garble),
        ("manifest.json", Path.unlink),
    ],
)
def test_a_damaged_checkpoint_is_passed_over_by_name(
    store: CheckpointStore, name: str, damage: object
) -> None:
    save(store, 3, 6)
    bad = newest(store) / name
    damage(bad)  # type: ignore[operator]
    good, (problem,) = store.newest_good()
    assert good == store.folder / "step_00000003"
    assert str(bad) in problem


def test_two_files_swapped_are_both_named(store: CheckpointStore) -> None:
    save(store, 3, 6)
    weights, moments = newest(store) / WEIGHTS, newest(store) / MOMENTS
    first, second = weights.read_bytes(), moments.read_bytes()
    assert len(first) == len(second)
    weights.write_bytes(second)
    moments.write_bytes(first)
    good, problems = store.newest_good()
    assert good == store.folder / "step_00000003"
    assert {problem.split(" ")[0] for problem in problems} == {str(weights), str(moments)}


def test_all_damaged_is_an_error_that_names_each(store: CheckpointStore) -> None:
    save(store, 3, 6)
    for path in store.committed():
        truncate(path / WEIGHTS)
    with pytest.raises(UntrustedError) as caught:
        store.newest_good()
    assert f"step_00000003/{WEIGHTS}" in str(caught.value)
    assert f"step_00000006/{WEIGHTS}" in str(caught.value)


@pytest.mark.parametrize("text", ["[]", "{}", '{"state.json": 1}', '{"state.json": {"bytes": 1}}'])
def test_a_manifest_of_another_form_is_damage(store: CheckpointStore, text: str) -> None:
    save(store, 3)
    (newest(store) / "manifest.json").write_text(text)
    with pytest.raises(UntrustedError, match=r"manifest\.json"):
        store.newest_good()


@pytest.mark.parametrize("form", ["../outside", "{folder}/outside"])
def test_a_manifest_cannot_name_a_file_elsewhere(store: CheckpointStore, form: str) -> None:
    """The file is there and its hash is right, so that only its place can be the reason."""
    save(store, 3)
    outside = store.folder / "outside"
    outside.write_bytes(b"x")
    name = form.format(folder=store.folder)
    manifest = newest(store) / "manifest.json"
    entries = json.loads(manifest.read_text())
    entries[name] = {"bytes": 1, "sha256": hashlib.sha256(b"x").hexdigest()}
    manifest.write_text(json.dumps(entries))
    (problem,) = find_damage(newest(store))
    assert "outside" in problem
