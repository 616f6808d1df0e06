"""Groups of processes: how they end, and what is known of them then."""

import sys
import time
from pathlib import Path

import psutil
import pytest

from tests.distributed.started import wait_until
from toolkit.errors import HangError
from toolkit.launch.processes import Machine, ProcessError, launch_words, processes

ENDLESS = ["sleep", "600"]


def shell(script: str) -> list[str]:
    return ["sh", "-c", script]


def test_what_all_print_is_returned(tmp_path: Path) -> None:
    with processes([shell("echo one"), shell("echo two >&2")], folder=tmp_path) as group:
        printed = group.finish("they", timeout_s=30)
    assert sorted(printed.split()) == ["one", "two"]


def test_they_get_threads_and_packages_and_no_settings_of_a_person(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_HOME", "theirs")
    script = (
        "import os, toolkit; print(*map(os.environ.get, ('HF_HOME', 'OMP_NUM_THREADS', 'OWN')))"
    )
    command = [sys.executable, "-c", script]
    with processes([command], folder=tmp_path, threads=3, environment={"OWN": "x"}) as group:
        assert group.finish("it", timeout_s=30).split() == [str(tmp_path / "empty"), "3", "x"]


def test_the_first_that_fails_ends_all(tmp_path: Path) -> None:
    with (
        pytest.raises(ProcessError, match=r"^the ranks failed:\nerror: bad luck\n$"),
        processes([ENDLESS, shell("echo error: bad luck; exit 3")], folder=tmp_path) as group,
    ):
        group.finish("the ranks", timeout_s=30)
    assert [process.poll() for process in group.started] == [-9, 3]


def test_what_does_not_finish_is_ended(tmp_path: Path) -> None:
    with (
        pytest.raises(HangError, match=r"^it did not finish within 0.1 s$"),
        processes([ENDLESS], folder=tmp_path) as group,
    ):
        group.finish("it", timeout_s=0.1)
    assert group.started[0].poll() == -9


def test_an_error_in_the_block_ends_them_at_once(tmp_path: Path) -> None:
    started = time.monotonic()
    with pytest.raises(ValueError), processes([ENDLESS, ENDLESS], folder=tmp_path) as group:  # noqa: PT011
        raise ValueError
    assert [process.poll() for process in group.started] == [-9, -9]
    assert time.monotonic() - started < 10


def test_a_command_that_is_not_there_leaves_none_behind(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError), processes([ENDLESS, ["nowhere"]], folder=tmp_path):
        pass
    assert ENDLESS not in [child.cmdline() for child in psutil.Process().children()]


def test_after_the_block_they_end_by_themselves(tmp_path: Path) -> None:
    with processes([shell("sleep 0.3; echo saved")], folder=tmp_path) as group:
        assert not group.any_ended
    assert group.printed() == "saved\n"
    assert group.started[0].returncode == 0


@pytest.mark.parametrize(
    ("printed", "found"),
    [
        ("error: first\nerror: bad key\nTraceback\n", "bad key"),
        ("all well\n\nit broke\n\n", "it broke"),
        ("", "its processes ended without a message"),
    ],
)
def test_the_last_error_is_known(tmp_path: Path, printed: str, found: str) -> None:
    with processes([["printf", "%s", printed]], folder=tmp_path) as group:
        wait_until(lambda: group.any_ended, limit_s=10)
        assert group.last_error() == found


def test_ranks_on_several_machines_meet_at_the_first() -> None:
    words = launch_words("zero2", 4, ["a.py"], machine=Machine(1, 2, "10.0.0.1", 29500))
    assert words[:2] == ["launch", "--config_file"]
    options = dict(zip(words[3:-1:2], words[4:-1:2], strict=True))
    assert options == {
        "--num_processes": "4",
        "--machine_rank": "1",
        "--num_machines": "2",
        "--main_process_ip": "10.0.0.1",
        "--main_process_port": "29500",
        "--deepspeed_multinode_launcher": "standard",
    }
    assert words[-1] == "a.py"
