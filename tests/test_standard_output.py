import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import IO

import pytest

from toolkit import cli

ROOT = Path(__file__).parents[1]
CHECK = ("check", str(ROOT / "configs" / "accelerate" / "ddp.yaml"))
ESTIMATE = ("estimate", "--strategies", "single")


@pytest.fixture
def written_to(monkeypatch: pytest.MonkeyPatch) -> Callable[[IO[str], Sequence[str]], int]:
    """Run the program with its output on a stream; return its exit code."""

    def run(stream: IO[str], words: Sequence[str]) -> int:
        monkeypatch.setattr("sys.argv", ["toolkit", *words])
        monkeypatch.setattr("sys.stdout", stream)
        with stream, pytest.raises(SystemExit) as ended:
            cli.main()
        return int(ended.value.code or 0)

    return run


@pytest.mark.parametrize("words", [CHECK, ESTIMATE, (*ESTIMATE, "--json"), ("--help",)])
def test_a_full_disk_is_a_sentence(written_to, capsys, words) -> None:
    assert written_to(os.fdopen(os.open("/dev/full", os.O_WRONLY), "w"), words) == 2
    sentence = "error: standard output cannot be written: No space left on device\n"
    assert capsys.readouterr().err == sentence


@pytest.mark.parametrize("words", [CHECK, ESTIMATE, (*ESTIMATE, "--json"), ("--help",)])
def test_a_reader_who_has_gone_gets_no_message(written_to, capsys, words) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    assert written_to(os.fdopen(writer, "w"), words) == 141
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize("unbuffered", ["", "1"])
def test_the_end_of_the_interpreter_adds_nothing(unbuffered: str) -> None:
    program = "from toolkit.cli import main; main()"
    with open("/dev/full", "w") as full:
        ended = subprocess.run(
            [sys.executable, "-c", program, *CHECK],
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            cwd=ROOT,
            env={**os.environ, "PYTHONUNBUFFERED": unbuffered},
            check=False,
        )
    assert ended.returncode == 2
    assert ended.stderr == "error: standard output cannot be written: No space left on device\n"
