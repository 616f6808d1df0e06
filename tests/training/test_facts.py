"""Which facts a rank is compared by: everything but what is named as free."""

import os
import platform
from pathlib import Path
from typing import Any

import pytest
import torch

from toolkit.config import RunConfig, dotted_values, load_run_config
from toolkit.config.problems import dotted_keys
from toolkit.data.stream import TokenStream
from toolkit.engines.agreement import MAX_SUBJECTS
from toolkit.engines.launched import read_launch
from toolkit.errors import UsageError
from toolkit.training import facts as facts_module
from toolkit.training.facts import (
    FREE,
    FREE_KEYS,
    REMEDIES,
    marked,
    run_facts,
    source_digests,
)


def facts_of(run_file: Path, *overrides: str) -> Any:
    config = load_run_config(run_file, overrides)
    stream = TokenStream(config.data.train, vocab_size=512)
    with marked(run_file.parent, rank=0) as mark:
        return run_facts(
            config,
            read_launch({}),
            {"data.train": stream.fingerprint()},
            device=torch.device("cpu"),
            mark=mark,
        )


def test_every_key_of_the_configuration_must_be_equal_or_is_named_as_free(run_file: Path) -> None:
    found = facts_of(run_file)
    compared = found["configuration"].keys() - {"strategy", "replicas"}
    assert compared == set(dotted_keys(RunConfig)) - set(FREE_KEYS)
    assert set(FREE_KEYS) <= set(dotted_keys(RunConfig)) & found[FREE].keys()


def test_a_new_key_must_be_equal(run_file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        facts_module, "dotted_values", lambda values: {**dotted_values(values), "training.new": 1}
    )
    assert facts_of(run_file)["configuration"]["training.new"] == 1


def test_every_subject_has_a_remedy_or_is_free_and_there_is_room(run_file: Path) -> None:
    found = facts_of(run_file)
    assert set(found) == {*REMEDIES, FREE}
    assert len(found) <= MAX_SUBJECTS


@pytest.mark.parametrize(
    ("override", "subjects"),
    [
        ("seed=7", ["configuration"]),
        ("optimizer.lr=2.0e-3", ["configuration"]),
        ("optimizer.grad_clip=0.5", ["configuration"]),
        ("precision=bf16", ["configuration"]),
        ("training.steps=5", ["configuration"]),
        ("output_dir=elsewhere", [FREE]),
        ("training.trackers=[wandb]", [FREE]),
        ("training.tracker_project=mine", [FREE]),
    ],
)
def test_a_key_shows_in_its_subject(run_file: Path, override: str, subjects: list[str]) -> None:
    unsaved = "training.checkpoint_every=1"
    first, other = facts_of(run_file, unsaved), facts_of(run_file, unsaved, override)
    # Each start has a mark of its own.
    del first["run folder"], other["run folder"]
    assert [name for name in first if first[name] != other[name]] == subjects


def test_data_is_compared_by_what_the_shards_hold(run_file: Path) -> None:
    first = facts_of(run_file)["data"]
    (run_file.parent / "train").rename(run_file.parent / "moved")
    moved = f"data.train={run_file.parent / 'moved'}"
    assert facts_of(run_file, moved)["data"] == first
    shard = run_file.parent / "moved" / "shard_000000.bin"
    shard.write_bytes(shard.read_bytes()[:-2] + b"\7\0")
    changed = facts_of(run_file, moved)["data"]
    assert changed["data.train.samples_sha256"] != first["data.train.samples_sha256"]


def test_code_is_every_source_file(tmp_path: Path) -> None:
    package = tmp_path / "package"
    (package / "inner").mkdir(parents=True)
    (package / "a.py").write_text("1")
    (package / "inner" / "b.py").write_text("2")
    first = source_digests(package)
    assert list(first) == ["package/a.py", "package/inner/b.py"]
    (package / "inner" / "b.py").write_text("3")
    other = source_digests(package)
    assert [name for name in first if first[name] != other[name]] == ["package/inner/b.py"]


def test_versions_and_hardware_are_compared_where_they_decide(run_file: Path) -> None:
    found = facts_of(run_file)
    minor, _, _ = platform.python_version().rpartition(".")
    assert found["versions"]["python"] == minor
    assert found["versions"]["torch"] == torch.__version__
    assert {"accelerate", "deepspeed", "numpy"} <= found["versions"].keys()
    assert found[FREE]["python"] == platform.python_version()
    assert found["hardware"]["device"] == "cpu"
    assert found["hardware"]["vector instructions"] == torch.backends.cpu.get_cpu_capability()
    assert found[FREE]["cpu cores"] == os.cpu_count()


def test_another_run_folder_has_another_mark(tmp_path: Path) -> None:
    first, second = tmp_path / "first", tmp_path / "second"
    for folder in (first, second):
        folder.mkdir()
    with marked(first, rank=0) as own, marked(first, rank=1) as shared:
        assert own == shared
        text = own.read_text()
        with marked(second, rank=1) as other:
            assert not other.exists()
        # One that a killed start left behind says nothing.
        with marked(second, rank=0) as stale:
            assert stale.read_text() != text
    assert list(first.iterdir()) == list(second.iterdir()) == []


def test_a_run_folder_that_cannot_be_written_to_is_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"\.mark: cannot be written: "):
        marked(tmp_path / "nothing", rank=0).__enter__()


def test_the_run_folder_must_be_shared_unless_nothing_is_saved(run_file: Path) -> None:
    saved = facts_of(run_file, "training.checkpoint_every=0")
    (key,) = saved["run folder"]
    unsaved = facts_of(run_file, "training.checkpoint_every=never")
    assert unsaved["run folder"] == {}
    assert key in unsaved[FREE]


def test_builds_for_nvidia_and_for_amd_are_told_apart(
    run_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.version, "cuda", "13.0")
    monkeypatch.setattr(torch.version, "hip", None)
    nvidia = facts_of(run_file)["versions"]
    monkeypatch.setattr(torch.version, "hip", "7.0")
    monkeypatch.setattr(torch.version, "cuda", None)
    amd = facts_of(run_file)["versions"]
    assert (nvidia["cuda"], nvidia["hip"], amd["cuda"], amd["hip"]) == ("13.0", None, None, "7.0")
