"""What is done before processes join; the joining itself is in tests/distributed."""

import os
import shutil
import sys
import time
from datetime import timedelta
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

from toolkit.engines.launched import read_launch
from toolkit.engines.process_group import (
    STALE_LOCK_S,
    build_extensions_here,
    start_process_group,
)
from toolkit.errors import UsageError


def test_a_lock_left_by_a_killed_build_is_taken_away(tmp_path, monkeypatch):
    monkeypatch.setenv("TORCH_EXTENSIONS_DIR", str(tmp_path))
    old, fresh = tmp_path / "old" / "lock", tmp_path / "fresh" / "lock"
    for lock in (old, fresh):
        lock.parent.mkdir()
        lock.touch()
    past = time.time() - STALE_LOCK_S - 1
    os.utime(old, (past, past))
    build_extensions_here(announce=False)
    assert not old.exists()
    assert fresh.exists()


def test_without_cuda_one_process_stays_on_the_cpu_as_well(monkeypatch):
    """Accelerate would take Apple's GPU, on which sums in fp64 fail."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.delenv("ACCELERATE_TORCH_DEVICE", raising=False)
    alone = read_launch({})
    assert alone.strategy == "single"
    assert start_process_group(alone, timeout=timedelta(seconds=60)).type == "cpu"
    assert os.environ.pop("ACCELERATE_TORCH_DEVICE") == "cpu"


@pytest.fixture(autouse=True)
def own_path(monkeypatch):
    monkeypatch.setenv("PATH", os.environ["PATH"])


def test_the_environments_own_ninja_builds(tmp_path, monkeypatch):
    other = tmp_path / "ninja"
    other.touch(mode=0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv("TORCH_EXTENSIONS_DIR", str(tmp_path))
    build_extensions_here(announce=False)
    assert shutil.which("ninja") == str(Path(sys.executable).with_name("ninja"))


def test_each_environment_builds_for_itself(monkeypatch):
    monkeypatch.delenv("TORCH_EXTENSIONS_DIR", raising=False)
    build_extensions_here(announce=False)
    assert os.environ["TORCH_EXTENSIONS_DIR"].startswith(sys.prefix)
    monkeypatch.delenv("TORCH_EXTENSIONS_DIR")


def test_a_build_is_announced_and_a_built_one_is_not(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("TORCH_EXTENSIONS_DIR", str(tmp_path))
    build_extensions_here(announce=True)
    assert "compiles an extension" in capsys.readouterr().err
    (tmp_path / "shm").mkdir()
    (tmp_path / "shm" / "shm.so").touch()
    build_extensions_here(announce=True)
    assert capsys.readouterr().err == ""


def test_a_restarted_group_finds_nothing_of_the_one_before(monkeypatch):
    """Under the launcher's own `env://` it does, which is why the toolkit does not use that."""
    timeout = timedelta(seconds=20)
    agent = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False, timeout=timeout)
    for key, value in {
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(agent.port),
        "TORCHELASTIC_USE_AGENT_STORE": "True",
    }.items():
        monkeypatch.setenv(key, value)

    def found(scheme, attempt):
        monkeypatch.setenv("TORCHELASTIC_RESTART_COUNT", str(attempt))
        store, rank, world_size = next(dist.rendezvous(f"{scheme}://", 0, 1, timeout=timeout))
        assert (rank, world_size) == (0, 1)
        known = store.check(["address of rank 0"])
        store.set("address of rank 0", f"attempt {attempt}")
        return known

    assert [found("env", attempt) for attempt in (0, 1)] == [False, True]
    assert [found("attempt", attempt) for attempt in (0, 1)] == [False, False]
    with pytest.raises(
        UsageError, match="another process is rank 0 already: two launchers have one"
    ):
        found("attempt", 1)
