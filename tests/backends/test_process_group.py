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
    _build_extensions_here()
    assert not old.exists()
    assert fresh.exists()


def test_each_environment_builds_for_itself(monkeypatch):
    monkeypatch.delenv("TORCH_EXTENSIONS_DIR", raising=False)
    _build_extensions_here()
    assert os.environ["TORCH_EXTENSIONS_DIR"].startswith(sys.prefix)
    monkeypatch.delenv("TORCH_EXTENSIONS_DIR")
