"""The launcher ends as the worker that failed first."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from toolkit.launch.exit_code import gathering_exit_codes, leave_exit_code
from toolkit.shipped import find_launch_file


def test_the_first_code_of_the_latest_start_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    with gathering_exit_codes() as latest:
        leave_exit_code(0)
        assert latest() is None
        leave_exit_code(6)
        leave_exit_code(75)
        assert latest() == 6
        monkeypatch.setenv("TORCHELASTIC_RESTART_COUNT", "10")
        leave_exit_code(4)
        assert latest() == 4
    leave_exit_code(2)


@pytest.mark.distributed
@pytest.mark.parametrize("strategy", ["single", "ddp"])
def test_the_launcher_ends_with_it_and_leaves_nothing(strategy: str, tmp_path: Path) -> None:
    temporary = tmp_path / "tmp"
    temporary.mkdir()
    script = tmp_path / "ends.py"
    script.write_text("from toolkit.launch.exit_code import end_process\nend_process(75)\n")
    words = ["launch", "--config_file", str(find_launch_file(strategy)), str(script)]
    command = [sys.executable, "-m", "toolkit.launch.launcher", *words]
    environment = {**os.environ, "HF_HOME": str(tmp_path), "TMPDIR": str(temporary)}
    done = subprocess.run(command, env=environment, capture_output=True, timeout=120)
    assert done.returncode == 75, done.stderr
    assert list(temporary.iterdir()) == []
