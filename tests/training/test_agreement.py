"""What ranks must have in common before the first step; tests/distributed starts them apart."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.data.shard_files import write_llmc
from toolkit.backends.launched import read_launch
from toolkit.config import RunConfig, dotted_values, load_run_config
from toolkit.data.stream import TokenStream
from toolkit.training import agreement
from toolkit.training.agreement import MAY_DIFFER, Facts, code_digest, collect_facts, differences

CPU = torch.device("cpu")


def facts(run_file: Path, *overrides: str, rank: int = 0, host: str = "a") -> Facts:
    config = load_run_config(run_file, overrides)
    streams = {"data.train": TokenStream(config.data.train, vocab_size=512)}
    found = collect_facts(config, read_launch({}), streams, CPU)
    return replace(found, rank=rank, host=host)


def compared(one: Facts, other: Facts) -> list[str]:
    return list(differences([one.equal, other.equal], [one, other]))


def test_equal_runs_have_equal_digests(run_file: Path) -> None:
    one, other = facts(run_file), facts(run_file, rank=1, host="b")
    assert one.digest() == other.digest()
    assert compared(one, other) == []


@pytest.mark.parametrize(
    ("override", "sentence"),
    [
        ("seed=7", "seed is 7 on rank 1 (host b) and 1337 on rank 0 (host a)"),
        ("optimizer.lr=0.01", "optimizer.lr is 0.01 on rank 1 (host b) and 0.001 on rank 0 (host"),
        ("optimizer.grad_clip=0.5", "optimizer.grad_clip is 0.5 on rank 1 (host b) and 1.0 on"),
        ("precision=bf16", "precision is bf16 on rank 1 (host b) and fp32 on rank 0 (host a)"),
    ],
)
def test_a_key_that_decides_numbers_is_named(run_file: Path, override: str, sentence: str) -> None:
    one, other = facts(run_file), facts(run_file, override, rank=1, host="b")
    assert one.digest() != other.digest()
    [found] = compared(one, other)
    assert sentence in found


def test_other_shards_under_the_same_name_are_named(run_file: Path) -> None:
    one = facts(run_file)
    write_llmc(run_file.parent / "train" / "shard_000000.bin", [5] * 2500)
    [found] = compared(one, facts(run_file, rank=1, host="b"))
    assert found.startswith("shards of data.train is ")
    assert "(samples_sha256) on rank 1 (host b)" in found


def test_the_same_shards_elsewhere_are_the_same(run_file: Path, tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    (run_file.parent / "train").rename(elsewhere)
    moved = facts(run_file, f"data.train={elsewhere}", rank=1, host="b")
    elsewhere.rename(run_file.parent / "train")
    one = facts(run_file)
    assert compared(one, moved) == []
    assert one.digest() != moved.digest()
    [line] = differences([one.free, moved.free], [one, moved])
    assert line.startswith(f"data.train is {elsewhere} on rank 1 (host b) and ")


@pytest.mark.parametrize("package", ["torch", "accelerate", "deepspeed"])
def test_another_version_is_named(
    run_file: Path, package: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = facts(run_file)
    usual = agreement.metadata.version
    monkeypatch.setattr(
        agreement.metadata, "version", lambda name: "9.9" if name == package else usual(name)
    )
    [found] = compared(one, facts(run_file, rank=1))
    assert found.startswith(f"version of {package} is 9.9 on rank 1")


def test_other_code_is_named(run_file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    one = facts(run_file)
    monkeypatch.setattr(agreement, "code_digest", lambda: "f" * 64)
    [found] = compared(one, facts(run_file, rank=1))
    assert found.startswith("code of the toolkit is ffffffffffff... on rank 1")


def test_the_codes_digest_follows_the_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "__init__.py").write_text("")
    (tmp_path / "step.py").write_text("a = 1")
    monkeypatch.setattr(agreement.toolkit, "__file__", str(tmp_path / "__init__.py"))
    before = code_digest()
    (tmp_path / "step.py").write_text("a = 2")
    assert code_digest() != before


def test_every_key_must_be_equal_unless_it_is_named() -> None:
    """A new key decides numbers until somebody says that it does not."""
    keys: dict[str, Any] = dotted_values(RunConfig().model_dump())
    assert keys.keys() >= MAY_DIFFER
    assert {"seed", "accumulation", "batch.tokens_per_step", "training.steps"} & MAY_DIFFER == set()
