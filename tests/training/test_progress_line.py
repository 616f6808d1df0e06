"""The line at the bottom of a terminal, on a terminal of its own and without one."""

import os
import pty
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Thread

import pytest

from toolkit.training import worker

pytestmark = pytest.mark.usefixtures("fresh_accelerate", "unlaunched")
CODE = "\x1b["


@contextmanager
def terminal(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """Let standard output be a terminal; afterwards the list holds what it showed."""
    shown: list[str] = []
    controller, slave = pty.openpty()

    def read() -> None:
        pieces = []
        while True:
            try:
                pieces.append(os.read(controller, 65536))
            except OSError:  # Linux's way to end where nobody has the other side any more
                break
            if not pieces[-1]:
                break
        shown.append(b"".join(pieces).decode())

    reader = Thread(target=read)
    reader.start()
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "150")
    try:
        with open(slave, "w") as file, monkeypatch.context() as patch:
            patch.setattr(sys, "stdout", file)
            yield shown
    finally:
        reader.join(30)
        os.close(controller)


def test_a_terminal_shows_how_far_the_run_is(
    run_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with terminal(monkeypatch) as shown:
        assert worker.main(["--config", str(run_file), "training.steps=3"]) == 0
    (text,) = shown
    assert all(f"{step}/3" in text for step in (1, 2, 3))
    assert "step     3/3 | loss" in text
    # The line is taken away at the end, and the cursor is never left hidden.
    assert text.rindex(f"{CODE}2K") > text.rindex("3/3")
    assert text.rfind(f"{CODE}?25h") > text.rfind(f"{CODE}?25l")


def test_a_quiet_run_has_none(run_file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with terminal(monkeypatch) as shown:
        assert worker.main(["--config", str(run_file), "training.steps=1", "--quiet"]) == 0
    assert shown == [""]


def test_without_a_terminal_there_is_none(
    run_file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert worker.main(["--config", str(run_file), "training.steps=1"]) == 0
    printed = capsys.readouterr().out
    assert "step     1/1 | loss" in printed
    assert "\x1b" not in printed
