"""What is done before processes join; the joining itself is in tests/distributed."""

import os
import sys
import time

from toolkit.backends.process_group import STALE_LOCK_S, _build_extensions_here


def test_a_lock_left_by_a_killed_build_is_taken_away(tmp_path, monkeypatch):
    monkeypatch.setenv("TORCH_EXTENSIONS_DIR", str(tmp_path))
    old, fresh = tmp_path / "old" / "lock", tmp_path / "fresh" / "lock"
    for lock in (old, fresh):
        lock.parent.mkdir()
        lock.touch()
    past = time.time() - STALE_LOCK_S - 1
    os.utime(old, (past, past))
    _build_extensions_here(announce=False)
    assert not old.exists()
    assert fresh.exists()


def test_each_environment_builds_for_itself(monkeypatch):
    monkeypatch.delenv("TORCH_EXTENSIONS_DIR", raising=False)
    _build_extensions_here(announce=False)
    assert os.environ["TORCH_EXTENSIONS_DIR"].startswith(sys.prefix)
    monkeypatch.delenv("TORCH_EXTENSIONS_DIR")


def test_a_build_is_announced_and_a_built_one_is_not(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("TORCH_EXTENSIONS_DIR", str(tmp_path))
    _build_extensions_here(announce=True)
    assert "compiles an extension" in capsys.readouterr().err
    (tmp_path / "shm").mkdir()
    (tmp_path / "shm" / "shm.so").touch()
    _build_extensions_here(announce=True)
    assert capsys.readouterr().err == ""
