"""What the launcher says in a worker's place, and when it is silent."""

import signal

import pytest

from toolkit.launcher import _say_if_killed


def test_a_killed_worker_is_named_with_its_signal(capsys: pytest.CaptureFixture[str]) -> None:
    _say_if_killed("rank 1", -signal.SIGKILL)
    said = capsys.readouterr().err
    assert said.startswith("error: rank 1 was killed by SIGKILL")
    assert said.count("\n") == 1


def test_a_worker_that_spoke_for_itself_is_left_at_that(capsys: pytest.CaptureFixture[str]) -> None:
    _say_if_killed("rank 1", 6)
    assert capsys.readouterr().err == ""
