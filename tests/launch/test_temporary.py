"""A temporary folder goes with the process that made it, however that ends."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.distributed.started import wait_until
from toolkit.launch.temporary import temporary_folder
from toolkit.shipped import ROOT

OWNER = """
import sys
from toolkit.launch.temporary import temporary_folder
with temporary_folder("owned-") as folder:
    print(folder, flush=True)
    sys.stdin.read()
"""


def test_a_folder_goes_with_its_block(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    with temporary_folder("owned-") as folder:
        (folder / "run").mkdir()
        (folder / "run" / "log").touch()
    assert list(tmp_path.iterdir()) == []


def test_a_folder_goes_with_a_process_that_is_killed(tmp_path: Path) -> None:
    owner = subprocess.Popen(
        [sys.executable, "-c", OWNER],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": str(ROOT), "TMPDIR": str(tmp_path)},
    )
    with owner:
        assert owner.stdout is not None
        folder = Path(owner.stdout.readline().strip())
        (folder / "log").touch()
        owner.send_signal(signal.SIGKILL)
    assert folder.parent == tmp_path
    wait_until(lambda: not folder.exists(), limit_s=10)
