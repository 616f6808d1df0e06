"""Every command of the documents is run, in the order and the folder in which a reader runs it."""

import os
import re
import shlex
import subprocess
import sys
from contextlib import redirect_stderr, redirect_stdout
from io import StringIO
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.samples import DOCUMENTS, ROOT, Fence, fences
from toolkit import cli

FENCES = [fence for document in DOCUMENTS for fence in fences(document)]
COMMANDS = [(fence, line) for fence in FENCES if fence.language == "sh" for line in fence.commands]
# One of README's 500 steps shows the same.
SHORTER = "training.steps=1"

pytestmark = [pytest.mark.distributed, pytest.mark.timeout(400)]


class Ended(NamedTuple):
    """The exit code of a command, and what it printed."""

    code: int
    printed: str


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A reader's folder: the checkout's files, texts, and the file that README shows."""
    folder = tmp_path_factory.mktemp("reader")
    for name in ("configs", "launch"):
        (folder / name).symlink_to(ROOT / name)
    (folder / "books").mkdir()
    for document in DOCUMENTS:
        (folder / "books" / document.replace("/", "_")).write_text((ROOT / document).read_text())
    (folder / "notes.jsonl").write_text('{"text": "To be, or not to be."}\n')
    (folder / "held_out.txt").write_text("That is the question.\n")
    for fence in FENCES:
        if fence.language == "yaml" and (named := re.match(r"# (\S+\.yaml)\n", fence.text)):
            (folder / named[1]).write_text(fence.text)
    return folder


@pytest.fixture(scope="module")
def endings(folder: Path) -> dict[str, Ended]:
    """How each command ended."""
    environment = {
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        "PYTHONPATH": str(ROOT),
        "HF_HOME": str(folder),
        "OMP_NUM_THREADS": "1",
    }
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        for name, value in environment.items():
            patch.setenv(name, value)
        found: dict[str, Ended] = {}
        for line in (line for fence, line in COMMANDS if fence.reason is None):
            # The same command on two pages is one run.
            if line not in found:
                found[line] = (
                    launched_by(line, found) if line.startswith("accelerate launch") else run(line)
                )
        return found


def launched_by(line: str, earlier: dict[str, Ended]) -> Ended:
    """How a launch ended that `toolkit train` printed and made: the same line is not run twice."""
    for ended in earlier.values():
        if f"{line} {SHORTER}\n" in ended.printed.replace(f"{ROOT}/", ""):
            return ended
    raise AssertionError(f"no `toolkit train` of the documents prints {line}")


def run(line: str) -> Ended:
    if line.startswith("toolkit train"):
        words = [sys.executable, "-m", *shlex.split(line), SHORTER]
        done = subprocess.run(words, capture_output=True, text=True, timeout=250, check=False)
        return Ended(done.returncode, done.stdout + done.stderr)
    printed = StringIO()
    with pytest.MonkeyPatch.context() as patch, redirect_stdout(printed), redirect_stderr(printed):
        patch.setattr(sys, "argv", shlex.split(line))
        with pytest.raises(SystemExit) as end:
            cli.main()
    return Ended(int(end.value.code or 0), printed.getvalue())


@pytest.mark.parametrize(
    ("fence", "line"), COMMANDS, ids=[f"{fence.document}: {line}" for fence, line in COMMANDS]
)
def test_it_runs(request: pytest.FixtureRequest, fence: Fence, line: str) -> None:
    if fence.reason is not None:
        pytest.skip(fence.reason)
    ended = request.getfixturevalue("endings")[line]
    assert ended.code == 0, ended.printed


def test_the_documents_programs_run(folder: Path, endings: object) -> None:
    """The blocks of Python on a page are one program, which has README's run beside it."""
    programs = [f for f in FENCES if f.language == "python" and f.reason is None]
    pages = {fence.document for fence in programs}
    assert pages
    for page in pages:
        code = "".join(fence.text for fence in programs if fence.document == page)
        done = subprocess.run(
            [sys.executable, "-c", code],
            cwd=folder,
            env=os.environ | {"PYTHONPATH": str(ROOT), "HF_HOME": str(folder)},
            capture_output=True,
            text=True,
            timeout=250,
            check=False,
        )
        assert done.returncode == 0, done.stderr


def test_no_block_escapes() -> None:
    """What has no language, or another one, would be neither run nor compared."""
    known = {"sh", "console", "yaml", "python", "text"}
    assert [fence for fence in FENCES if fence.language not in known] == []
